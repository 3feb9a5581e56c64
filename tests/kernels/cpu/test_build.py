"""Calls of the native library: Python and the compiler lay out a struct alike, and fields are passed by name.

A library that cannot be called counts as missing.
"""

import logging
import struct
import subprocess
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


# A compiler that turns any source at once into a library without any function.
COMPILER = """#!/bin/sh
for last; do :; done
case "$*" in
*-shared*) echo 'int other() { return 1; }' | {compiler} -shared -fPIC -x c++ - -o "$last" ;;
*) touch "$last" ;;
esac
"""


def test_a_library_without_the_functions_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compiler = compilation.find_compiler()
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    (tmp_path / "c++").write_text(COMPILER.replace("{compiler}", compiler))
    (tmp_path / "c++").chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "c++"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPLITFUSE_NATIVE", raising=False)
    compilation.announce.cache_clear()
    assert not compilation.is_built(str(tmp_path / "c++"))
    caplog.set_level(logging.DEBUG, logger=compilation._log.name)
    assert build._library.__wrapped__() is None
    assert compilation.is_built(str(tmp_path / "c++"))
    assert "undefined symbol" in caplog.text
    assert "torch ops" in caplog.text
    logged = [record.getMessage() for record in caplog.records if record.name == compilation._log.name]
    assert logged[0].startswith("building the CPU library for this processor, once, about ")
    num_files = len(compilation._SOURCES)
    assert logged[1:-1] == [f"{num} of {num_files} files" for num in range(1, num_files + 1)]
    assert logged[-1].startswith("built the CPU library in ")
