"""Compilation of the native CPU library by the machine's C++ compiler, and its name in the cache. Imports no torch.

A build is reported to the logger `splitfuse.kernels.build`: its begin and end are INFO, the files so far DEBUG, every
second.
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
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .compiler_group import CompilerGroup
    from .library_cache import ObjectCache

_log = logging.getLogger("splitfuse.kernels.build")
FOLDER = Path(__file__).with_name("csrc")
_SOURCES = sorted(FOLDER.glob("*.cpp"))
_HEADERS = sorted(FOLDER.glob("*.h"))
# No -ffast-math: it would let the compiler assume that there is no NaN. The last two flags only drop errno and traps.
_FLAGS = [*("-O3", "-std=c++17", "-fPIC"), *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math")]
_NATIVE = ("-march=native",)
# Two kernels of attention agree to the bit, and recurrences for any cut: products are fused where the source says.
_FLAGS_OF_ATTENTION = ["-ffp-contract=off"]

_OPENMP_CALL = "GOMP_parallel"
_TRIAL = "team"  # a small file that starts threads
_LONGEST = ("quantized_linear_bfloat16", "attention_prefill", "attention_decode", "quantized_linear_float32")


def is_wanted() -> bool:
    """True unless SPLITFUSE_NATIVE=0."""
    return os.environ.get("SPLITFUSE_NATIVE") != "0"


def find_compiler() -> str | None:
    """Find the C++ compiler: $CXX, else g++, c++ or clang++ on the path."""
    names = [os.environ.get("CXX", ""), "g++", "c++", "clang++"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _num_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def compile_library(
    compiler: str,
    folder: Path,
    options: Sequence[str] = _NATIVE,
    *,
    objects: "ObjectCache | None" = None,
    limit_s: float = 600.0,
) -> Path:
    """Build the library in a folder, for processors by `options`. `objects`: what an interrupted build has compiled.

    Raises OSError, also after `limit_s` without a file.
    """
    global _build
    announce()
    _build = _Build(compiler, folder, options, objects)
    try:
        return _build.run(limit_s)
    finally:
        _build = None


def build_progress() -> str | None:
    """Say how far this process's build is: "7 of 17 files, 40 s"; None without a build."""
    build = _build
    return None if build is None else build.progress


class _Build:
    """A build of the library: compiled and missing object files."""

    def __init__(self, compiler: str, folder: Path, options: Sequence[str], objects: "ObjectCache | None") -> None:
        self._start = time.perf_counter()
        self._compiler, self._folder, self._options, self._objects = compiler, folder, options, objects
        # The trial goes first; then the longest files, so that they end with the others.
        first = (_TRIAL, *_LONGEST)
        self._sources = sorted(_SOURCES, key=lambda source: [source.stem != stem for stem in first])
        self._keys = {source: _object_key(compiler, source, options) for source in self._sources}
        self._missing = [source for source in self._sources if not self._restore(source)]

    @property
    def progress(self) -> str:
        num_ended = len(self._sources) - len(self._missing)
        return f"{num_ended} of {len(self._sources)} files, {time.perf_counter() - self._start:.0f} s"

    def run(self, limit_s: float) -> Path:
        from .compiler_group import CompilerGroup

        self._report()
        commands = [
            [self._compiler, *_flags(source), *self._options, "-c", "-o", str(self._object(source)), str(source)]
            for source in self._missing
        ]
        with CompilerGroup(self._folder, limit_s=limit_s) as compilers:

            def on_end(command: Sequence[str]) -> None:
                self._end(Path(command[-1]), compilers)

            compilers.run(commands, num_parallel=_num_cores(), on_end=on_end, on_tick=self._report)
            linked = self._link(self._sources, compilers)
        if self._objects is not None:
            self._objects.drop_others(self._keys.values())
        _log.info("built the CPU library in %.1f s", time.perf_counter() - self._start)
        return linked

    def _end(self, source: Path, compilers: "CompilerGroup") -> None:
        """Keep the object file of a source that has been compiled."""
        if source.stem == _TRIAL and self._options == _NATIVE:
            trial = self._link([source], compilers)
            try:
                ctypes.CDLL(str(trial))
            except OSError as exc:
                raise OSError(f"{self._compiler} builds what cannot be loaded: {exc}") from exc
        if self._objects is not None:
            self._objects.keep(self._keys[source], self._object(source))
        self._missing.remove(source)
        self._report()

    def _link(self, sources: Sequence[Path], compilers: "CompilerGroup") -> Path:
        linked = self._folder / ("native.so" if len(sources) > 1 else "trial.so")
        compilers.run([[self._compiler, "-shared", *map(str, map(self._object, sources)), "-o", str(linked)]])
        return linked

    def _object(self, source: Path) -> Path:
        return self._folder / f"{source.stem}.o"

    def _restore(self, source: Path) -> bool:
        return self._objects is not None and self._objects.restore(self._keys[source], self._object(source))

    def _report(self) -> None:
        _log.debug("%s", self.progress)


_build: _Build | None = None


def share_openmp() -> bool:
    """Let libraries find the OpenMP runtime in this process: torch's wheels for 64-bit Arm load it for torch alone.

    Returns False if libraries cannot use it: team.h then starts threads of its own.
    """
    with contextlib.suppress(OSError, TypeError):  # no /proc; Windows
        if not hasattr(ctypes.CDLL(None), _OPENMP_CALL):
            for path in set(re.findall(r"/\S*/lib[gi]?omp\S*", Path("/proc/self/maps").read_text("utf-8"))):
                ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
        return hasattr(ctypes.CDLL(None), _OPENMP_CALL)
    return False


def _flags(source: Path) -> list[str]:
    return [*_FLAGS, *_FLAGS_OF_ATTENTION] if source.stem.startswith(("attention", "recurrence")) else _FLAGS


def is_built(compiler: str) -> bool:
    """Return True if the cache has what this compiler builds, so that `library` need not build. Raises OSError."""
    return (cache_folder() / library_name(compiler)).exists()


@functools.cache
def announce() -> None:
    """Log that a build begins, once in this process."""
    _log.info("building the CPU library for this processor, once: %d files", len(_SOURCES))


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
    return _digest(source_digest(), compiler, os.stat(compiler).st_mtime_ns, platform.machine(), cpu_features())


def _object_key(compiler: str, source: Path, options: Sequence[str]) -> str:
    """Return a key that changes with all that decides an object file."""
    texts = [path.read_bytes() for path in (*_HEADERS, source)]
    return _digest(texts, _flags(source), *options, compiler, os.stat(compiler).st_mtime_ns, cpu_features())


def _digest(*parts: object) -> str:
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
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
