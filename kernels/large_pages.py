"""Memory of weights in pages of 2 MiB where Linux has them, so that reads of them seldom miss the TLB."""

import contextlib
import mmap
import threading
import time
import weakref

import torch
from torch import Tensor

# Shared memory, the default, has small pages.
_FLAGS = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MADV_HUGEPAGE") else {}
_lock = threading.Lock()
_last, _used, _time = weakref.ref(mmap.mmap(-1, 1)), 0, 0.0
_PAUSE_S = 2.0  # after which a region is of another model, so that the earlier one's can be freed


def contiguous(tensor: Tensor) -> Tensor:
    """Copy a tensor into such memory."""
    return empty(tensor.nbytes).view(tensor.dtype).view(tensor.shape).copy_(tensor)


def empty(num_bytes: int) -> Tensor:
    """Return bytes of any values. Neighbours share a region of 64 MiB, which is freed with the last of them."""
    global _last, _used, _time
    with _lock:
        before, _time = _time, time.monotonic()
        if (memory := _last()) is None or _used + num_bytes > len(memory) or _time > before + _PAUSE_S:
            memory, _used = region(max(num_bytes, 2**26)), 0
            _last = weakref.ref(memory)
        start, _used = _used, -(-(_used + num_bytes) // 64) * 64
    return torch.frombuffer(memory, dtype=torch.uint8, count=num_bytes, offset=start)


def region(num_bytes: int) -> mmap.mmap:
    """Return memory that goes back to the system when it is freed."""
    memory = mmap.mmap(-1, num_bytes, **_FLAGS)
    with contextlib.suppress(AttributeError, OSError):  # a system or a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
