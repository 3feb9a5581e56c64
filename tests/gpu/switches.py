"""Switches of the kernels' optional features, so that a GPU can measure what a feature is worth."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import NamedTuple


class Switch(NamedTuple):
    """A feature's constant, and the decodes that use the feature."""

    module: str  # of kernels.cuda by name: its import decides whether kernels are interpreted, not for this file
    constant: str
    off: object
    numbers_of_rows: tuple[int, int]
    is_sampled: bool = False


class Always:
    """Exactness that steps do not switch off."""

    is_on = property(lambda self: True, lambda self, is_on: None)


SWITCHES = {
    "few_rows": Switch("linear.few_rows", "MAX_ROWS", 0, (1, 8)),
    "dependent launch": Switch("device_info", "USES_DEPENDENT_LAUNCH", False, (1, 32)),
    "free order of sums": Switch("device_info", "EXACT", Always(), (1, 32)),  # without it: what --exact costs
    "dealt out filter": Switch("filter_logits", "CAPACITY", 0, (1, 32), is_sampled=True),
}


@contextmanager
def without(name: str) -> Iterator[None]:
    """Switch a feature off for kernels launched and graphs captured within the block."""
    switch = SWITCHES[name]
    module = import_module(f"splitfuse.kernels.cuda.{switch.module}")
    on = getattr(module, switch.constant)
    setattr(module, switch.constant, switch.off)
    try:
        yield
    finally:
        setattr(module, switch.constant, on)
