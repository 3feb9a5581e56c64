"""Native CPU library: prebuilt (prebuilt.py) or built once (compilation.py), called with ctypes.

Without it (no compiler, SPLITFUSE_NATIVE=0) `library()` is None, and backend.py uses torch ops.
"""

import ctypes
import functools
import logging
import re
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from . import prebuilt
from .compilation import FOLDER, cache_folder, compile_library, find_compiler, is_wanted, library_name, share_openmp
from .library_cache import LibraryCache, ObjectCache
from .recording import NativeOp, Value

_lock = threading.Lock()
_log = logging.getLogger("splitfuse.kernels")
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


def loaded_library() -> Library | None:
    """Return the library if it is loaded already; nobody waits for it to be built."""
    return _library() if _library.cache_info().currsize else None


def op(name: str, dtype: str | None) -> Callable[..., None] | None:
    """Return the library's op; None without a library or for a dtype that it does not know."""
    native = library()
    return None if native is None else native.get(f"{name}_{dtype}")


@functools.cache
def _library() -> Library | None:
    if not is_wanted():
        return None
    if not share_openmp():
        _log.warning("torch's OpenMP threads cannot be used: each CPU op starts threads of its own, which is slower")
    if (path := prebuilt.find()) is not None:
        try:
            return _all_bound(ctypes.CDLL(str(path)))
        except (OSError, AttributeError) as exc:
            _log.warning("the prebuilt CPU library cannot be used (%s); building one", exc)
    compiler = find_compiler()
    if compiler is None:
        _log.warning("no C++ compiler found: CPU attention runs on torch ops, several times slower; install g++")
        return None
    try:
        folder = cache_folder()
        build = functools.partial(compile_library, compiler, objects=ObjectCache(folder))
        return _all_bound(LibraryCache(folder).load(library_name(compiler), build))
    # RuntimeError: the user has no home folder; AttributeError: the library lacks a function.
    except (OSError, RuntimeError, AttributeError) as exc:
        hint = "; set XDG_CACHE_HOME to a folder for it" if isinstance(exc, PermissionError) else ""
        _log.warning("the native CPU library cannot be used (%s); CPU attention runs on torch ops%s", exc, hint)
        return None


def _all_bound(loaded: ctypes.CDLL) -> Library:
    return {name: _bound(loaded[name], fields) for name, _, fields in _ops((FOLDER / "arguments.h").read_text("utf-8"))}


def _ops(header: str) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Yield (name, C++ type, {field: `struct` format}) of each op: every struct of arguments.h at every dtype."""
    for types, camel, body in re.findall(r"(template <[^>]*>\n)?struct (\w+) : Op \{\n(.*?)\};", header, re.DOTALL):
        fields = {"num_threads": "q"}  # of team.h
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
    packer = struct.Struct("".join(fields.values()) + "0q")  # padded like in C++, for experts' arrays of structs
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
