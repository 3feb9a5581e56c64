"""Memory of weights in pages of 2 MiB where Linux has them, so that reads of them seldom miss the TLB."""

import contextlib
import mmap

import torch
from torch import Tensor

LARGE_PAGE = 2**21  # bytes
# Shared memory, the default, has small pages.
_FLAGS = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MADV_HUGEPAGE") else {}


def contiguous(tensor: Tensor) -> Tensor:
    """Copy a tensor into such memory."""
    return empty(tensor.nbytes).view(tensor.dtype).view(tensor.shape).copy_(tensor)


def empty(num_bytes: int) -> Tensor:
    """Return bytes of any values, with memory of their own from the size of a page on."""
    if num_bytes < LARGE_PAGE:
        return torch.empty(num_bytes, dtype=torch.uint8)
    return torch.frombuffer(region(num_bytes), dtype=torch.uint8)


def region(num_bytes: int) -> mmap.mmap:
    """Return memory that goes back to the system when it is freed."""
    memory = mmap.mmap(-1, num_bytes, **_FLAGS)
    with contextlib.suppress(AttributeError, OSError):  # a system or a kernel without them
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
