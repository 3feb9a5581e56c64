"""ReadBuffers: memory that entries are read into, with its pages before any entry is read.

The first write to a page of 4 KB costs 2.5 us on a virtual machine: 30 ms for 46 MB, 2,000 tokens of SmolLM2, whose
SHA-256 takes 23.
"""

import contextlib
import ctypes
import mmap
import weakref
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

_MADV_POPULATE_WRITE = 23  # Linux 5.14


def touch(array: NDArray[Any]) -> None:
    """Let a contiguous array have its pages now. Changes no byte."""
    with contextlib.suppress(AttributeError):  # a C library without madvise
        start = array.ctypes.data // mmap.PAGESIZE * mmap.PAGESIZE
        num_bytes = array.ctypes.data + array.nbytes - start
        ctypes.CDLL(None).madvise(ctypes.c_void_p(start), ctypes.c_size_t(num_bytes), _MADV_POPULATE_WRITE)


class ReadBuffers:
    """Pool of buffers of one size. Any number of threads may take one."""

    def __init__(self, num_bytes: int, *, max_bytes: int) -> None:
        """`num_bytes`: of one buffer. `max_bytes`: of all that are kept."""
        self._num_bytes = max(num_bytes, 1)
        # Small pages: large ones that no process had before took 100 to 190 ms for 46 MB there, else 2.
        memory = mmap.mmap(-1, max_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._memory = np.frombuffer(memory, dtype=np.uint8)
        self._free = deque(range(0, max_bytes - self._num_bytes + 1, self._num_bytes))  # first bytes

    def touch(self) -> None:
        """Let all buffers have their pages."""
        touch(self._memory)

    def take(self, num_bytes: int) -> memoryview:
        """Return a buffer, which is free again when nothing refers to it; new memory if the pool has none."""
        try:
            start = self._free.popleft() if num_bytes <= self._num_bytes else None
        except IndexError:
            start = None
        if start is None:
            return memoryview(bytearray(num_bytes))
        buffer = self._memory[start : start + num_bytes]
        weakref.finalize(buffer, self._free.append, start).atexit = False
        return buffer.data
