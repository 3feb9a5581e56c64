"""Calls of the native library: Python and the compiler lay out a struct alike, and fields are passed by name.

A library that cannot be called counts as missing.
"""

import logging
import os
import re
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from splitfuse.kernels.cpu import build, compilation

FOLDER = compilation.FOLDER


def test_the_compiler_lays_out_every_struct_as_python_does(tmp_path: Path) -> None:
    compiler = compilation.find_compiler()
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    lines = ["#include <cstddef>", '#include "arguments.h"']
    for name, cpp_type, fields in build._ops((FOLDER / "arguments.h").read_text()):
        lines.append(f"using {name}_t = {cpp_type};")
        formats = ""
        for field, kind in fields.items():
            offset = struct.calcsize(f"{formats}0{kind}")
            lines.append(f"static_assert(offsetof({name}_t, {field}) == {offset});")
            lines.append(f"static_assert(sizeof({name}_t::{field}) == {struct.calcsize(kind)});")
            formats += kind
        lines.append(f"static_assert(sizeof({name}_t) == {struct.calcsize(formats + '0P')});")
    assert sum("sizeof" in line for line in lines) > 200
    (tmp_path / "layout.cpp").write_text("\n".join(lines))
    command = [compiler, "-std=c++17", "-fsyntax-only", f"-I{FOLDER}", str(tmp_path / "layout.cpp")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_field_that_is_missing_or_unknown_is_named() -> None:
    library = build.library()
    if library is None:
        pytest.skip("needs a C++ compiler for the native CPU library")
    x = torch.ones(3)
    with pytest.raises(TypeError, match="'cap'"):
        library["softcap"](x=x, out=x, count=3)
    with pytest.raises(TypeError, match="'size'"):
        library["softcap"](x=x, out=x, count=3, cap=1.0, size=3)
    with pytest.raises(struct.error):
        library["softcap"](x=x, out=x, count=2.5, cap=1.0)
    library["softcap"](x=x, out=x, count=3, cap=1e6)
    torch.testing.assert_close(x, torch.ones(3))


# A compiler that turns any source at once into a library without any function, and notes the source. It fails at the
# file named in `failing`.
COMPILER = """#!/bin/sh
for last; do :; done
case "$*" in
*-shared*)
    text='extern "C" int missing(); int other() { return {body}; }'
    echo "$text" | {compiler} -shared -fPIC -x c++ - -o "$last" ;;
*)
    echo "$last" >> {folder}/compiled
    [ "${last##*/}" = "$(cat {folder}/failing 2>/dev/null)" ] && { echo it fails; exit 1; }
    for word; do [ "$before" = -o ] && touch "$word"; before=$word; done; true ;;
esac
"""
NUM_FILES = len(compilation._SOURCES)


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[..., None]:
    """Return a function that writes the compiler, whose libraries call a missing function or do not."""
    real = compilation.find_compiler()
    if real is None:
        pytest.skip("needs a C++ compiler")
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPLITFUSE_NATIVE", raising=False)
    monkeypatch.setattr(compilation, "_num_cores", lambda: 1)
    compilation.announce.cache_clear()
    caplog.set_level(logging.DEBUG, logger=compilation._log.name)

    def write(body: str) -> None:
        text = COMPILER.replace("{compiler}", real).replace("{folder}", str(tmp_path)).replace("{body}", body)
        (tmp_path / "c++").write_text(text)
        (tmp_path / "c++").chmod(0o755)

    return write


def compiled(folder: Path) -> list[str]:
    """Stems of the sources that were compiled since the last call."""
    lines = (folder / "compiled").read_text().splitlines()
    (folder / "compiled").unlink()
    return [Path(line).stem for line in lines]


def test_a_library_without_the_functions_is_none(
    compiler: Callable[..., None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiler("1")
    assert not compilation.is_built(str(tmp_path / "c++"))
    assert build._library.__wrapped__() is None
    assert compilation.is_built(str(tmp_path / "c++"))
    assert "undefined symbol" in caplog.text
    assert "torch ops" in caplog.text
    logged = [record.getMessage() for record in caplog.records if record.name == compilation._log.name]
    assert logged[0] == f"building the CPU library for this processor, once: {NUM_FILES} files"
    counts = [line.partition(" of ")[0] for line in logged[1:-1]]
    assert list(dict.fromkeys(counts)) == [str(num) for num in range(NUM_FILES + 1)]
    assert re.fullmatch(rf"{NUM_FILES} of {NUM_FILES} files, \d+ s", logged[-2])
    assert logged[-1].startswith("built the CPU library in ")


def test_a_build_goes_on_at_the_files_that_are_missing(compiler: Callable[..., None], tmp_path: Path) -> None:
    compiler("1")
    (tmp_path / "failing").write_text("sampling.cpp")
    assert build._library.__wrapped__() is None
    first = compiled(tmp_path)
    assert first[-1] == "sampling", "one at a time, and none after it"
    folder = compilation.cache_folder()
    assert not list(folder.glob("cpu-*"))
    damaged = next(iter(folder.glob("object-*.o")))
    damaged.write_bytes(b"half")
    (tmp_path / "failing").unlink()
    assert build._library.__wrapped__() is None  # it has none of the functions, but it is built
    assert list(folder.glob("cpu-*.so"))
    assert len(compiled(tmp_path)) == NUM_FILES - (len(first) - 1) + 1, "what had failed, what came after, the damaged"
    assert len(list(folder.glob("object-*.o"))) == NUM_FILES


def test_another_source_or_compiler_has_other_objects(
    compiler: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler("1")
    changed = tmp_path / "csrc"
    shutil.copytree(FOLDER, changed)
    for name, pattern in (("_SOURCES", "*.cpp"), ("_HEADERS", "*.h")):
        monkeypatch.setattr(compilation, name, sorted(changed.glob(pattern)))

    def build_again() -> list[str]:
        compilation.source_digest.cache_clear()
        compilation.library_name.cache_clear()
        build._library.__wrapped__()
        return compiled(tmp_path)

    try:
        assert len(build_again()) == NUM_FILES
        with (changed / "gates.cpp").open("a") as file:
            file.write("// more")
        assert build_again() == ["gates"]
        with (changed / "simd.h").open("a") as file:
            file.write("// more")
        assert len(build_again()) == NUM_FILES
        compiler("2")
        os.utime(tmp_path / "c++", (1, 1))
        assert len(build_again()) == NUM_FILES
        assert len(list(compilation.cache_folder().glob("object-*.o"))) == NUM_FILES, "those of others are gone"
    finally:
        monkeypatch.undo()
        compilation.source_digest.cache_clear()
        compilation.library_name.cache_clear()


def test_what_cannot_be_loaded_is_known_after_one_file(
    compiler: Callable[..., None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    compiler("missing()")
    assert build._library.__wrapped__() is None
    assert compiled(tmp_path) == ["team"]
    assert "builds what cannot be loaded" in caplog.text
    assert "undefined symbol: missing" in caplog.text


THREADS = """
#include "team.h"
extern "C" int64_t threads(int64_t num_threads) {
    std::atomic<int64_t> sum{0};
    together(nullptr, num_threads, [&](const Team& team) { team.barrier(); sum += 10 * team.num_threads + 1; });
    return sum;
}
"""
PROGRAM = """
import ctypes, sys
if sys.argv[2:]:
    import torch
threads = ctypes.CDLL(sys.argv[1]).threads
print([threads(ctypes.c_int64(num)) for num in (1, 2, 3)], hasattr(ctypes.CDLL(None), "GOMP_parallel"))
"""


@pytest.mark.thorough
def test_every_compiler_starts_threads_with_and_without_openmp(tmp_path: Path) -> None:
    compilers = [path for path in map(shutil.which, ("g++", "clang++")) if path]
    if not compilers:
        pytest.skip("needs a C++ compiler")
    (tmp_path / "threads.cpp").write_text(THREADS)
    sources = [str(tmp_path / "threads.cpp"), str(FOLDER / "team.cpp")]
    for compiler in compilers:
        library = str(tmp_path / "threads.so")
        subprocess.run([compiler, *compilation._FLAGS, f"-I{FOLDER}", "-shared", *sources, "-o", library], check=True)
        for more in ([], ["torch"]):
            run = [sys.executable, "-c", PROGRAM, library, *more]
            shown = subprocess.run(run, capture_output=True, text=True, check=True).stdout
            assert shown == f"[11, 42, 93] {bool(more)}\n"
