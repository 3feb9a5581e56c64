"""Build of the native CPU library: once by the machine's C++ compiler, cached by content, called with ctypes.

Without it (no compiler, SPLITFUSE_NATIVE=0) `library()` is None, and backend.py uses torch ops.
A build is reported to the logger `splitfuse.kernels.build`: its begin and end are INFO, the files so far DEBUG.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import re
import shutil
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from .library_cache import LibraryCache
from .recording import NativeOp, Value

_lock = threading.Lock()
_log = logging.getLogger("splitfuse.kernels")
_build_log = logging.getLogger("splitfuse.kernels.build")
_FOLDER = Path(__file__).with_name("csrc")
_SOURCES = sorted(_FOLDER.glob("*.cpp"))
_HEADERS = sorted(_FOLDER.glob("*.h"))
# No -ffast-math: it would let the compiler assume that there is no NaN. The last two flags only drop errno and traps.
_FLAGS = [
    *("-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
]
_FLAGS_OF_ATTENTION = ["-ffp-contract=off"]  # two kernels agree to the bit, so products are fused where the source says

_COMPILER_LIMIT_S = 600  # much longer than a file takes on a busy machine
# Processor time of g++ 12 on an Intel Xeon (2026-11-24). The longest file goes first, so that it ends with the others.
_LONGEST, _LONGEST_S, _ALL_S = "quantized_linear", 14.2, 34.0

DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
# Keys are the dtypes of the values and of the norm's weight.
NORM_DTYPES = {
    (torch.float32, torch.float32): "float32",
    (torch.bfloat16, torch.bfloat16): "bfloat16",
    (torch.bfloat16, torch.float32): "bfloat16_float32",
}
# Index: number of a struct's type parameters. Suffix of the C function's name → template arguments in C++.
_INSTANCES: tuple[dict[str, str], ...] = (
    {"": ""},
    {"_float32": "<float>", "_bfloat16": "<bf16>"},
    {"_float32": "<float, float>", "_bfloat16": "<bf16, bf16>", "_bfloat16_float32": "<bf16, float>"},
)

# Name of an op and its dtype (`silu_mul_bfloat16`) → the op. Its keywords are the fields of its struct in arguments.h;
# pointers take a tensor or None.
Library = Mapping[str, Callable[..., None]]


def library() -> Library | None:
    """Load the library and build it first if necessary; None if that fails. One thread builds, others wait."""
    with _lock:
        return _library()


@functools.cache
def _library() -> Library | None:
    if os.environ.get("SPLITFUSE_NATIVE") == "0":
        return None
    compiler = find_compiler()
    if compiler is None:
        _log.warning("no C++ compiler found: CPU attention runs on torch ops, several times slower; install g++")
        return None
    try:
        loaded = LibraryCache(cache_folder()).load(_name(compiler), functools.partial(_compile, compiler))
        return {name: _bound(loaded[name], fields) for name, _, fields in _ops((_FOLDER / "arguments.h").read_text())}
    # RuntimeError: the user has no home folder; AttributeError: the library lacks a function.
    except (OSError, RuntimeError, AttributeError) as exc:
        _log.warning("the native CPU library cannot be used (%s); CPU attention runs on torch ops", exc)
        return None


def _ops(header: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield (name, C++ type, {field: `struct` format}) of each op: every struct of arguments.h at every dtype."""
    for types, camel, body in re.findall(r"(template <[^>]*>\n)?struct (\w+) \{\n(.*?)\};", header, re.DOTALL):
        fields = {}
        for kind, names in re.findall(r"(?:const )?(\w+)(.*);", body):
            for name in names.split(","):
                fields[name.strip(" *")] = "P" if "*" in name else {"int64_t": "q", "float": "f"}[kind]
        op = re.sub(r"(?<!^)(?=[A-Z])", "_", camel).lower()
        for suffix, arguments in _INSTANCES[types.count("typename")].items():
            yield op + suffix, camel + arguments, fields


def _bound(function: Any, fields: Mapping[str, str]) -> Callable[..., None]:
    """Return a function with the fields of the C function's struct as keywords, except num_threads, which is torch's.

    If its first field is a Value, the call is recorded instead. The function is compiled from text, like a dataclass's
    __init__: add_rms_norm of one row takes 7.7 us, with a ctypes argument for each field 8.4; rope_and_cache 15.1 and
    16.5.
    """
    function.argtypes, function.restype = [ctypes.c_char_p, ctypes.c_void_p], None
    values = {
        name: f"0 if {name} is None else {name}.data_ptr()" if kind == "P" else name for name, kind in fields.items()
    }
    values["num_threads"] = "get_num_threads()"
    keys = [name for name in fields if name != "num_threads"]
    packer = struct.Struct("".join(fields.values()))
    scope = {
        "function": function,
        "pack": packer.pack,
        "op": NativeOp(ctypes.cast(function, ctypes.c_void_p).value or 0, packer, tuple(fields.items())),
        "Value": Value,
        "get_num_threads": torch.get_num_threads,
    }
    source = (
        f"lambda *, {', '.join(keys)}: function(pack({', '.join(values.values())}), None) "
        f"if type({keys[0]}) is not Value else {keys[0]}.record(op, dict({', '.join(f'{n}={n}' for n in keys)}))"
    )
    bound: Callable[..., None] = eval(source, scope)
    return bound


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


def _compile(compiler: str, folder: Path) -> Path:
    """Build the library in this folder from its sources. Raises OSError."""
    start = time.perf_counter()
    _build_log.info("building the CPU library for this processor, once, about %.0f s", expected_build_s())
    sources = sorted(_SOURCES, key=lambda source: source.stem != _LONGEST)
    objects = {source: folder / f"{source.stem}.o" for source in sources}
    linked = folder / "native.so"
    from .compiler_group import CompilerGroup

    with CompilerGroup(folder, limit_s=_COMPILER_LIMIT_S) as compilers:
        compilers.run(
            [[compiler, *_flags(source), "-c", str(source), "-o", str(built)] for source, built in objects.items()],
            num_parallel=_num_cores(),
            on_end=lambda num_ended: _build_log.debug("%d of %d files", num_ended, len(objects)),
        )
        # Linked without -fopenmp on purpose: the symbols come from the OpenMP runtime that torch has loaded.
        compilers.run([[compiler, "-shared", *map(str, objects.values()), "-o", str(linked)]])
    _build_log.info("built the CPU library in %.1f s", time.perf_counter() - start)
    return linked


def _flags(source: Path) -> list[str]:
    return [*_FLAGS, *_FLAGS_OF_ATTENTION] if source.stem.startswith("attention") else _FLAGS


def is_built(compiler: str) -> bool:
    """Return True if the cache has what this compiler builds, so that `library` need not build. Raises OSError."""
    return (cache_folder() / _name(compiler)).exists()


def cache_folder() -> Path:
    """Return the folder of built libraries. Raises RuntimeError if the user has no home folder."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "splitfuse", "native")


def _name(compiler: str) -> str:
    """Return the library's file name."""
    return f"cpu-{_key(compiler)}.so"


def _key(compiler: str) -> str:
    """Return a key that changes with the source, the compiler and the processor (-march=native)."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*_HEADERS, *_SOURCES)))
    digest.update(
        repr(
            (_FLAGS, _FLAGS_OF_ATTENTION, compiler, os.stat(compiler).st_mtime_ns, platform.machine(), _cpu_features())
        ).encode()
    )
    return digest.hexdigest()[:20]


def _cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
