"""Switches of the kernels' optional features, so that a GPU can measure what a feature is worth."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

# Modules of kernels.cuda by name: their import decides whether kernels are interpreted, which is not for this file.
SWITCHES: dict[str, tuple[str, str, object]] = {
    "few_rows": ("linear.few_rows", "MAX_ROWS", 0),
    "dependent launch": ("device_info", "USES_DEPENDENT_LAUNCH", False),
    "dealt out filter": ("filter_logits", "CAPACITY", 0),
}


@contextmanager
def without(name: str) -> Iterator[None]:
    """Switch a feature off for kernels launched and graphs captured within the block."""
    module_name, constant, off = SWITCHES[name]
    module = import_module(f"splitfuse.kernels.cuda.{module_name}")
    on = getattr(module, constant)
    setattr(module, constant, off)
    try:
        yield
    finally:
        setattr(module, constant, on)
