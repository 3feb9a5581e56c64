"""The native CPU library: built once by the machine's C++ compiler (7 s), cached by content, loaded with ctypes.

Absent (no compiler, SPLITFUSE_NATIVE=0) is fine: `library()` is None then and cpu.py takes torch ops.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

_lock = threading.Lock()
_log = logging.getLogger("splitfuse.kernels")
_FOLDER = Path(__file__).with_name("csrc")
_SOURCES = sorted(_FOLDER.glob("*.cpp"))
_HEADERS = sorted(_FOLDER.glob("*.h"))
# No -ffast-math: it would let the compiler assume that there is no NaN. These two only drop errno and traps.
_FLAGS = [
    *("-O3", "-march=native", "-std=c++17", "-fPIC", "-fopenmp"),
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
]

_P, _N, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float
_SIGNATURES = {
    "paged_attention": [_P] * 7 + [_N] * 10 + [_F, _F, _N],
    "attend_chunks": [_P] * 7 + [_N] * 11 + [_F, _F, _N],
    "quantized_linear": [_P] * 4 + [_N] * 6,
    "add_layer_norm": [_P] * 6 + [_N] * 2 + [_F, _N],
    "silu_mul": [_P] * 2 + [_N] * 3,
    "gelu_tanh_mul": [_P] * 2 + [_N] * 3,
}
_NORM_SIGNATURES = {
    "rope_and_cache": [_P] * 11 + [_N] * 9 + [_F, _N],
    "add_rms_norm": [_P] * 5 + [_N] * 2 + [_F, _N],
}
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}
# By the dtype of the values and of the norm's weight.
NORM_DTYPES = {
    (torch.float32, torch.float32): "float32",
    (torch.bfloat16, torch.bfloat16): "bfloat16",
    (torch.bfloat16, torch.float32): "bfloat16_float32",
}


def library() -> ctypes.CDLL | None:
    """The loaded library, built first if need be, or None if there cannot be one. One thread builds, others wait."""
    with _lock:
        return _library()


@functools.cache
def _library() -> ctypes.CDLL | None:
    if os.environ.get("SPLITFUSE_NATIVE") == "0":
        return None
    compiler = find_compiler()
    if compiler is None:
        _log.warning("no C++ compiler found: CPU attention runs on torch ops, several times slower; install g++")
        return None
    try:
        path = _build(compiler)
        loaded = ctypes.CDLL(str(path))
    except (OSError, RuntimeError, subprocess.SubprocessError) as exc:  # RuntimeError: a user without a home
        _log.warning("the native CPU library cannot be used (%s); CPU attention runs on torch ops", exc)
        return None
    signatures = {f"{name}_{dtype}": types for name, types in _SIGNATURES.items() for dtype in DTYPES.values()}
    signatures |= {f"{name}_{both}": types for name, types in _NORM_SIGNATURES.items() for both in NORM_DTYPES.values()}
    signatures |= {"gumbel_argmax_float32": [_P] * 3 + [_N] * 3, "softcap_float32": [_P] * 2 + [_N, _F, _N]}
    signatures["linear_bfloat16"] = [_P] * 4 + [_N] * 4
    for name, types in signatures.items():
        function = getattr(loaded, name)
        function.argtypes, function.restype = types, None
    return loaded


def find_compiler() -> str | None:
    """The C++ compiler: $CXX, else g++, c++ or clang++ from the path."""
    names = [os.environ.get("CXX", ""), "g++", "c++", "clang++"]
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _build(compiler: str) -> Path:
    target = _cache_folder() / f"cpu-{_key(compiler)}.so"
    if target.exists():
        return target
    start = time.perf_counter()
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        objects = [Path(folder, f"{source.stem}.o") for source in _SOURCES]
        commands = [
            [compiler, *_FLAGS, "-c", str(source), "-o", str(built)]
            for source, built in zip(_SOURCES, objects, strict=True)
        ]
        with ThreadPoolExecutor() as pool:
            list(pool.map(_run, commands))
        # Linked without -fopenmp on purpose: the runtime's symbols come from the one that torch has loaded.
        linked = Path(folder, "native.so")
        _run([compiler, "-shared", *map(str, objects), "-o", str(linked)])
        linked.rename(target)  # at once, so that two servers starting together do not see half a file
    _log.info("built the native CPU library in %.1f s", time.perf_counter() - start)
    return target


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise OSError(f"{command[0]}: {done.stderr.strip()[-500:]}")


def _cache_folder() -> Path:
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "splitfuse", "native")


def _key(compiler: str) -> str:
    """Changes with the source, the compiler and the processor, since -march=native builds for this one."""
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in (*_HEADERS, *_SOURCES)))
    digest.update(repr((_FLAGS, compiler, os.stat(compiler).st_mtime_ns, platform.machine(), _cpu_features())).encode())
    return digest.hexdigest()[:20]


def _cpu_features() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")
