"""How much memory a device has, and what there is to say where it is not enough. Knows no model."""

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import torch

from ...errors import ConfigError, is_out_of_memory


class DeviceMemory(Protocol):
    """A GPU's memory, in bytes."""

    def free_and_total(self) -> tuple[int, int]:
        """What is free once all that ended tensors left has been given back, and what there is at all."""

    def peak(self, work: Callable[[], object]) -> int:
        """The most that this work takes beside what is in use. Raises what it raises."""


class CudaMemory:
    """Of a CUDA device, through torch's allocator."""

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
    """None for a CPU, whose memory is not this process's own."""
    return CudaMemory(device) if device.type == "cuda" else None


def available_memory() -> int:
    """Bytes of main memory that this process may still take: of the machine, or of its container if that is less."""
    available = _meminfo("MemAvailable") or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = int(Path("/sys/fs/cgroup/memory.max").read_text())
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):  # no cgroup v2, or "max"
        return available
    return min(available, max(0, limit - used))


def _meminfo(name: str) -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), None)


@contextmanager
def refusing_out_of_memory(way_out: str) -> Iterator[None]:
    """Within it a tensor that does not fit is a ConfigError: `way_out`, and what the allocator said."""
    try:
        yield
    except RuntimeError as exc:
        if not is_out_of_memory(exc):
            raise
        raise ConfigError(f"out of memory: {way_out} ({str(exc).strip().partition('. If reserved')[0]})") from exc
