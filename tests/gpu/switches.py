"""What a kernel does beyond the plain way, one switch each, so that a GPU can tell what it is worth."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

# Modules of kernels.cuda by name: importing them decides whether kernels are interpreted, which is not for this file.
SWITCHES: dict[str, tuple[str, str, object]] = {
    "few_rows": ("linear.few_rows", "MAX_ROWS", 0),
    "dependent launch": ("device_info", "USES_DEPENDENT_LAUNCH", False),
    "dealt out filter": ("filter_logits", "CAPACITY", 0),
}


@contextmanager
def without(name: str) -> Iterator[None]:
    """Within it this is switched off, for kernels launched and graphs captured there."""
    module_name, constant, off = SWITCHES[name]
    module = import_module(f"splitfuse.kernels.cuda.{module_name}")
    on = getattr(module, constant)
    setattr(module, constant, off)
    try:
        yield
    finally:
        setattr(module, constant, on)
