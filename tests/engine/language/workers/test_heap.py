"""Threads of a server allocate from one heap, whose freed memory goes back."""

import ctypes
import subprocess
import sys

import pytest

_PROGRAM = """
import ctypes, sys, threading
from splitfuse.engine.language.workers.heap import share_one_heap
if sys.argv[1] == "shared":
    share_one_heap()
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fdopen.restype = ctypes.c_void_p
thread = threading.Thread(target=libc.malloc, args=(100_000,))
thread.start()
thread.join()
out = ctypes.c_void_p(libc.fdopen(1, b"w"))
libc.malloc_info(0, out)
libc.fflush(out)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="glibc's heaps")
def test_threads_share_the_main_heap():
    def num_heaps(how: str) -> int:
        command = [sys.executable, "-c", _PROGRAM, how]
        return subprocess.run(command, capture_output=True, check=True).stdout.count(b"<heap nr=")

    assert num_heaps("shared") == 1
    assert num_heaps("own") > 1
