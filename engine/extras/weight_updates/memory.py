"""Memory that is given back to the system while its addresses stay valid."""

import contextlib
import ctypes
import mmap
from collections.abc import Iterable

from torch import Tensor


def discard(tensors: Iterable[Tensor]) -> None:
    """Give back the whole pages of these tensors on a CPU. Their contents are lost; the next write takes pages again.

    Native plans hold the addresses, so nothing has to be recorded again.
    """
    with contextlib.suppress(AttributeError):  # a C library without madvise: the memory stays
        madvise = ctypes.CDLL(None).madvise
        for tensor in tensors:
            start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
            num_bytes = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - start
            if num_bytes > 0:
                madvise(ctypes.c_void_p(start), ctypes.c_size_t(num_bytes), mmap.MADV_DONTNEED)
