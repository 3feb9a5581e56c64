"""Concurrent compilation of kernels before they are needed: launches compile and load a kernel without running it.
`when_compiled` reports kernels that are compiled later, when they are needed.

Compiling a kernel takes 0.2 to 1.2 s and its launcher's stub another 0.4 to 0.8, most of it without the GIL.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock
from types import SimpleNamespace
from typing import Any

from triton import knobs
from triton.runtime import build
from triton.runtime._async_compile import AsyncCompileMode, FutureKernel
from triton.runtime.jit import JITFunction

_NUM_THREADS = 8


@contextmanager
def compile_ahead() -> Iterator[list[Any]]:
    """Compile the kernels launched in the block, without running them: their outputs stay as allocated.

    At the end every launch has a compiled kernel. No other thread may launch meanwhile. Raises the compiler's errors.
    """
    kernels: list[Any] = []

    def launcher(self: Any, grid: object) -> Callable[..., None]:
        return lambda *args, **options: kernels.append(self.run(*args, grid=grid, warmup=True, **options))

    with ThreadPoolExecutor(_NUM_THREADS) as pool, loads_apart():
        JITFunction.__getitem__ = launcher
        try:
            with AsyncCompileMode(pool):
                yield kernels
        finally:
            del JITFunction.__getitem__
        kernels[:] = [kernel.result() if isinstance(kernel, FutureKernel) else kernel for kernel in kernels]
        list(pool.map(_load, {id(kernel): kernel for kernel in kernels}.values()))


@contextmanager
def loads_apart() -> Iterator[None]:
    """Load launchers' modules one by one within the block, and keep what each of them defines.

    They have one name, and Python loads a module the second time into the last one of its name. So before Triton reads
    a launcher from its module, another thread may put another kernel's there. It happened once in 197 models.
    """
    load, lock = build._load_module_from_path, Lock()

    def load_alone(name: str, path: str) -> Any:
        with lock:
            return SimpleNamespace(**vars(load(name, path)))

    build._load_module_from_path = load_alone
    try:
        yield
    finally:
        build._load_module_from_path = load


def when_compiled(call: Callable[[], object]) -> None:
    """Register a function to be called whenever a kernel has been compiled or loaded from the disk's cache."""
    before = knobs.runtime.jit_post_compile_hook

    def hook(**what: Any) -> Any:
        call()
        return None if before is None else before(**what)

    knobs.runtime.jit_post_compile_hook = hook


def _load(kernel: Any) -> None:
    kernel.run  # noqa: B018  the property loads it
