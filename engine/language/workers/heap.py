"""The C library's heap, from which Python and torch allocate."""

import contextlib
import ctypes
import os

_M_ARENA_MAX = -8  # in malloc.h
_MOST_CORES = 8  # with more, threads that allocate might wait for each other: measured on two


def share_one_heap() -> None:
    """Let all threads of a small machine allocate from the main heap, in a process without other threads yet.

    glibc's malloc_trim returns nothing of the end of other heaps, in which threads have loaded weights: 45 MiB after
    SmolLM2's GGUF file of 94 MiB.
    """
    if (os.cpu_count() or 1) > _MOST_CORES:
        return
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def return_freed_memory() -> None:
    """Return freed memory to the system: 36 MiB in 16 ms, which glibc keeps after a GGUF file of 94 MiB was loaded."""
    with contextlib.suppress(AttributeError):  # only glibc has it
        ctypes.CDLL(None).malloc_trim(0)
