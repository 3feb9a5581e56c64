"""Progress bar on the terminal while weights load, if loading takes longer than a second."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from ...kernels.ops import QuantizedWeight

_DELAY_S = 1.0


@contextmanager
def with_progress(source: Any, *, total: int | None) -> Iterator[Any]:
    """Yield the WeightSource with a bar of taken tensors out of `total` (None: unknown).

    There is no bar if standard error is not a terminal.
    """
    if not sys.stderr.isatty():
        yield source
        return
    from tqdm import tqdm

    with tqdm(total=total, desc="loading", unit=" tensors", delay=_DELAY_S, leave=False) as bar:
        yield _Counted(source, bar.update)


class _Counted:
    """WeightSource that calls `count` with True when a tensor is taken for the first time."""

    def __init__(self, source: Any, count: Callable[[int], object]) -> None:
        self._source = source
        self._count = count
        self._taken_names: set[str] = set()
        self.has = source.has
        self.unread = source.unread

    def take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        self._note(name)
        tensor: Tensor = self._source.take(name, shape)
        return tensor

    def take_quantized(self, name: str, shape: tuple[int, ...]) -> QuantizedWeight | None:
        self._note(name)
        weight: QuantizedWeight | None = self._source.take_quantized(name, shape)
        return weight

    def _note(self, name: str) -> None:
        self._count(name not in self._taken_names)
        self._taken_names.add(name)
