"""DeviceMemory: free and peak memory of a device, and the error if memory does not suffice. Knows no model."""

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch

from ...errors import ConfigError, is_out_of_memory


class DeviceMemory(Protocol):
    """Memory of a GPU, in bytes."""

    def free_and_total(self) -> tuple[int, int]:
        """Return the free memory, after the memory of dead tensors has been released, and the total."""

    def peak(self, work: Callable[[], object]) -> int:
        """Run `work` and return its peak memory beyond the memory in use before. Raises `work`'s errors."""


class CudaMemory:
    """Memory of a CUDA device, through torch's allocator."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def free_and_total(self) -> tuple[int, int]:
        gc.collect()
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)

    def peak(self, work: Callable[[], object]) -> int:
        self.free_and_total()
        before = torch.cuda.memory_reserved(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        work()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_reserved(self._device) - before


def memory_of(device: torch.device) -> DeviceMemory | None:
    """Return the memory of a GPU; None for a CPU, whose memory other processes share."""
    return CudaMemory(device) if device.type == "cuda" else None


@contextmanager
def refusing_out_of_memory(way_out: str) -> Iterator[None]:
    """Turn an out-of-memory error of the block into a ConfigError with `way_out` and the allocator's message."""
    try:
        yield
    except RuntimeError as exc:
        if not is_out_of_memory(exc):
            raise
        raise ConfigError(f"out of memory: {way_out} ({str(exc).strip().partition('. If reserved')[0]})") from exc
