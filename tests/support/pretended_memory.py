"""Pretended GPU with limited memory: every tensor of this process counts, and one too many does not fit."""

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from splitfuse.engine.execution.models import decoder
from splitfuse.engine.formats import weights
from splitfuse.engine.formats.weight_reader import WeightReader
from splitfuse.engine.formats.weights import SafetensorsSource


class PretendedMemory:
    """DeviceMemory that counts live storages of tensors made within `counting`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = self.most_used = 0
        self._storages: set[int] = set()
        self._lock = threading.RLock()

    def free_and_total(self) -> tuple[int, int]:
        return self.total - self.used, self.total

    def peak(self, work: Callable[[], object]) -> int:
        before, self.most_used = self.used, self.used
        work()
        return self.most_used - before

    def count(self, tensor: Tensor) -> None:
        held: Any = tensor
        if tensor.layout is not torch._mkldnn:  # type: ignore[attr-defined]  # whose storage cannot be seen
            held = tensor.untyped_storage()
        key, num_bytes = (held._cdata, held.nbytes()) if held is not tensor else (id(tensor), 2 * tensor.numel())
        with self._lock:
            if key in self._storages:
                return
            self._storages.add(key)
            self.used += num_bytes
            self.most_used = max(self.most_used, self.used)
        weakref.finalize(held, self._freed, key, num_bytes)
        if self.used > self.total:
            raise torch.OutOfMemoryError(f"tried to allocate {num_bytes} bytes, {self.total} there are. If reserved …")

    def _freed(self, key: int, num_bytes: int) -> None:
        with self._lock:
            self._storages.discard(key)
            self.used -= num_bytes

    @contextlib.contextmanager
    def counting(self) -> Iterator[None]:
        with _Counting(self):
            yield

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Make engines on the CPU take this memory for a GPU's: they read ahead, and size their caches by it."""
        source, read = SafetensorsSource, WeightReader._read

        patch.setattr(decoder, "_MAX_LOADING", 1)  # a GPU's loading, in the thread that is counted

        def counted(*args: Any) -> Tensor:
            with self.counting():
                return read(*args)

        def ahead(*args: Any, **options: Any) -> SafetensorsSource:
            return source(*args, **{**options, "reads_ahead_to": torch.device("cpu")})

        patch.setattr("splitfuse.engine.serving.loading.memory_of", lambda device: self)
        patch.setattr(weights, "SafetensorsSource", ahead)
        patch.setattr(WeightReader, "_read", counted)


class _Counting(TorchDispatchMode):
    def __init__(self, memory: PretendedMemory) -> None:
        super().__init__()
        self._memory = memory

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._memory.count(leaf)
        return out
