"""Processor time of a build: every class of processors costs about as much as x86-64-v4, and no file most of it.

SPLITFUSE_TEST_ALL=1 compiles every class of this machine with g++ and clang++, some 50 s of processor time each.
"""

import os
import platform
import resource
import shutil
import subprocess
from pathlib import Path

import pytest

from splitfuse.kernels.cpu import compilation, prebuilt

BASE = "x86_64_v4"
MOST_OF_BASE, MOST_OF_ALL = 1.3, 1 / 3
CLASSES = [processors for processors in prebuilt.CLASSES if processors.machine == "x86_64"]

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="compares classes of x86-64")


def seconds(compiler: str, processors: prebuilt.ProcessorClass, source: Path, folder: Path) -> float:
    """Return the processor time of the compiler for one file."""
    command = [compiler, *compilation._flags(source), *processors.options, "-c", str(source), "-o", str(folder / "o")]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


@pytest.mark.skipif(not os.environ.get("SPLITFUSE_TEST_ALL"), reason="SPLITFUSE_TEST_ALL=1 compiles for minutes")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", ["g++", "clang++"])
def test_every_class_costs_about_the_same(name: str, tmp_path: Path) -> None:
    compiler = shutil.which(name)
    if compiler is None:
        pytest.skip(f"needs {name}")
    # File by file, so that a busy moment of the machine meets every class.
    times = {
        source.stem: {processors.name: seconds(compiler, processors, source, tmp_path) for processors in CLASSES}
        for source in compilation._SOURCES
    }
    sums = {processors.name: sum(of_file[processors.name] for of_file in times.values()) for processors in CLASSES}
    for name_of_class, total in sums.items():
        longest = max(times, key=lambda stem: times[stem][name_of_class])
        share = times[longest][name_of_class] / total
        text = f"{total:.1f} s, {total / sums[BASE]:.2f} of {BASE}'s; {longest} {share:.2f}"
        print(f"{name} {name_of_class}: {text}")
        assert total <= MOST_OF_BASE * sums[BASE], text
        assert share <= MOST_OF_ALL, text


# Steps of the loops that a compiler has split into lanes before.
PRIMITIVES = """
#include "simd.h"
extern "C" void compare(ivec* out, const vec* a, const vec* b) { *out = *a < *b; }
extern "C" void larger_of(vec* out, const vec* a, const vec* b) { *out = larger(*a, *b); }
extern "C" void multiply(vec* out, const vec* a, const vec* b) { *out = fma(*a, *b, *out); }
extern "C" void activate(vec* out) { *out = silu(*out); }
extern "C" void read_bf16(vec* out, const bf16* from) { *out = load(from); }
extern "C" void read_int8(vec* out, const int8_t* from) { *out = load(from); }
extern "C" void write_bf16(bf16* out, const vec* x) { store(out, *x); }
"""


def test_no_primitive_is_computed_lane_by_lane(tmp_path: Path) -> None:
    """Compare sizes of code: two registers need twice the instructions of one, sixteen lanes eight times as many."""
    compiler = compilation.find_compiler()
    if compiler is None:
        pytest.skip("needs a C++ compiler")
    (tmp_path / "primitives.cpp").write_text(PRIMITIVES)
    sizes: dict[str, dict[str, int]] = {}
    for name in (BASE, "x86_64_v3"):
        (options,) = (processors.options for processors in CLASSES if processors.name == name)
        command = [compiler, *compilation._FLAGS, *options, f"-I{compilation.FOLDER}", "-c", "primitives.cpp"]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        symbols = subprocess.run(["nm", "-S", "primitives.o"], cwd=tmp_path, check=True, capture_output=True, text=True)
        rows = [line.split() for line in symbols.stdout.splitlines()]
        sizes[name] = {row[3]: int(row[1], 16) for row in rows if len(row) == 4 and row[2] == "T"}
    assert len(sizes[BASE]) == PRIMITIVES.count("extern")
    assert {name: size for name, size in sizes["x86_64_v3"].items() if size > 4 * sizes[BASE][name]} == {}
