"""Kernels compiled side by side before they are needed: what is launched meanwhile is compiled and loaded, not run.
And `when_compiled`: to be told of those that are compiled when they are needed.

A kernel takes the compiler 0.2 to 1.2 s and its launcher's stub another 0.4 to 0.8, most of it without the GIL.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from triton import knobs
from triton.runtime._async_compile import AsyncCompileMode, FutureKernel
from triton.runtime.jit import JITFunction

_NUM_THREADS = 8


@contextmanager
def compile_ahead() -> Iterator[list[Any]]:
    """Within it outputs of kernels stay as they were allocated. Behind it there is a compiled kernel for each launch.

    No other thread may launch meanwhile. Raises what the compiler raised.
    """
    kernels: list[Any] = []

    def launcher(self: Any, grid: object) -> Callable[..., None]:
        return lambda *args, **options: kernels.append(self.run(*args, grid=grid, warmup=True, **options))

    with ThreadPoolExecutor(_NUM_THREADS) as pool:
        JITFunction.__getitem__ = launcher
        try:
            with AsyncCompileMode(pool):
                yield kernels
        finally:
            del JITFunction.__getitem__
        kernels[:] = [each.result() if isinstance(each, FutureKernel) else each for each in kernels]
        list(pool.map(_load, {id(each): each for each in kernels}.values()))


def when_compiled(call: Callable[[], object]) -> None:
    """From now on this is called whenever a kernel has been compiled, or loaded from the disk's cache."""
    before = knobs.runtime.jit_post_compile_hook

    def hook(**what: Any) -> Any:
        call()
        return None if before is None else before(**what)

    knobs.runtime.jit_post_compile_hook = hook


def _load(kernel: Any) -> None:
    kernel.run  # noqa: B018  the property loads it
