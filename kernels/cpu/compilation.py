"""Compilation of the native CPU library by the machine's C++ compiler, and its name in the cache. Imports no torch.

A build is reported to the logger `splitfuse.kernels.build`: its begin and end are INFO, the files so far DEBUG.
"""

import contextlib
import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

_log = logging.getLogger("splitfuse.kernels.build")
FOLDER = Path(__file__).with_name("csrc")
_SOURCES = sorted(FOLDER.glob("*.cpp"))
_HEADERS = sorted(FOLDER.glob("*.h"))
# No -ffast-math: it would let the compiler assume that there is no NaN. The last two flags only drop errno and traps.
_FLAGS = [
    *("-O3", "-std=c++17", "-fPIC", "-fopenmp"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
]
_NATIVE = ("-march=native",)
# Two kernels of attention agree to the bit, and recurrences for any cut: products are fused where the source says.
_FLAGS_OF_ATTENTION = ["-ffp-contract=off"]

# Processor time of g++ 12 on an AMD EPYC (2026-11-26). The longest file goes first, so that it ends with the others.
_LONGEST, _LONGEST_S, _ALL_S = "quantized_linear", 15.7, 43.0


def is_wanted() -> bool:
    """True unless SPLITFUSE_NATIVE=0."""
    return os.environ.get("SPLITFUSE_NATIVE") != "0"


def find_compiler() -> str | None:
    """Find the C++ compiler: $CXX, else g++, c++ or clang++ on the path."""
    names = [os.environ.get("CXX", ""), "g++", "c++", "clang++"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def expected_build_s() -> float:
    """Return the time that a build takes on the usable cores, if they have nothing else to do."""
    return max(_LONGEST_S, _ALL_S / _num_cores())


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compile_library(compiler: str, folder: Path, options: Sequence[str] = _NATIVE, *, limit_s: float = 600.0) -> Path:
    """Build the library here, for processors by `options`. Raises OSError, also after `limit_s` without a file."""
    start = time.perf_counter()
    announce()
    sources = sorted(_SOURCES, key=lambda source: source.stem != _LONGEST)
    objects = {source: folder / f"{source.stem}.o" for source in sources}
    linked = folder / "native.so"
    from .compiler_group import CompilerGroup

    with CompilerGroup(folder, limit_s=limit_s) as compilers:
        compilers.run(
            [
                [compiler, *_flags(source), *options, "-c", str(source), "-o", str(built)]
                for source, built in objects.items()
            ],
            num_parallel=_num_cores(),
            on_end=lambda num_ended: _log.debug("%d of %d files", num_ended, len(objects)),
        )
        # Linked without -fopenmp on purpose: the symbols are those of the runtime that torch has loaded (share_openmp).
        compilers.run([[compiler, "-shared", *map(str, objects.values()), "-o", str(linked)]])
    _log.info("built the CPU library in %.1f s", time.perf_counter() - start)
    return linked


def share_openmp() -> None:
    """Let libraries find the OpenMP runtime in this process: torch's wheels for 64-bit Arm load it for torch alone."""
    with contextlib.suppress(OSError, TypeError):  # no /proc; Windows
        if not hasattr(ctypes.CDLL(None), "omp_get_num_threads"):
            for path in set(re.findall(r"/\S*/lib[gi]?omp\S*", Path("/proc/self/maps").read_text())):
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)


def _flags(source: Path) -> list[str]:
    return [*_FLAGS, *_FLAGS_OF_ATTENTION] if source.stem.startswith(("attention", "recurrence")) else _FLAGS


def is_built(compiler: str) -> bool:
    """Return True if the cache has what this compiler builds, so that `library` need not build. Raises OSError."""
    return (cache_folder() / library_name(compiler)).exists()


@functools.cache
def announce() -> None:
    """Log that a build begins, once in this process."""
    _log.info("building the CPU library for this processor, once, about %.0f s", expected_build_s())


def announce_if_missing() -> None:
    """Announce the build if `library` will have to build, without an import of torch."""
    compiler = find_compiler() if is_wanted() else None
    try:
        if compiler is not None and not is_built(compiler):
            announce()
    except (OSError, RuntimeError):  # `library` warns of it
        return


def cache_folder() -> Path:
    """Return the folder of built libraries. Raises RuntimeError if the user has no home folder."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "splitfuse", "native")


@functools.cache  # read twice at a start: 4 ms
def library_name(compiler: str) -> str:
    """Return the library's file name."""
    return f"cpu-{_key(compiler)}.so"


def _key(compiler: str) -> str:
    """Return a key that changes with the source, the compiler and the processor (-march=native)."""
    parts = (source_digest(), compiler, os.stat(compiler).st_mtime_ns, platform.machine(), cpu_features())
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:20]


@functools.cache
def source_digest() -> str:
    """Return a key that changes with the source and with the compiler's flags, but for the processor's."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*_HEADERS, *_SOURCES)))
    digest.update(repr((_FLAGS, _FLAGS_OF_ATTENTION)).encode())
    return digest.hexdigest()[:20]


def cpu_features() -> str:
    """Return the words for what the processor can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
