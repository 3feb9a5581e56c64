"""What a kernel does beyond the plain way, one switch each, so that a GPU can tell what it is worth."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from splitfuse.kernels.cuda import device_info, filter_logits
from splitfuse.kernels.cuda.linear import few_rows

SWITCHES: dict[str, tuple[Any, str, object]] = {
    "few_rows": (few_rows, "MAX_ROWS", 0),
    "dependent launch": (device_info, "USES_DEPENDENT_LAUNCH", False),
    "dealt out filter": (filter_logits, "CAPACITY", 0),
}


@contextmanager
def without(name: str) -> Iterator[None]:
    """Within it this is switched off, for kernels launched and graphs captured there."""
    module, constant, off = SWITCHES[name]
    on = getattr(module, constant)
    setattr(module, constant, off)
    try:
        yield
    finally:
        setattr(module, constant, on)
