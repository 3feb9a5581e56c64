"""Choice of the prebuilt library by what the processor can do, and what happens without one."""

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from splitfuse.kernels.cpu import build, compilation, prebuilt

V3 = "fpu sse2 abm avx avx2 bmi1 bmi2 f16c fma movbe"
V4 = f"{V3} avx512f avx512bw avx512cd avx512dq avx512vl"
BF16 = f"{V4} avx512_vnni avx512_bf16 avx512vbmi avx_vnni"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have empty files for all classes but avx_vnni."""
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    monkeypatch.delenv("SPLITFUSE_NATIVE", raising=False)
    for processors in prebuilt.CLASSES:
        if processors.name != "avx_vnni":
            (tmp_path / prebuilt.file_name(processors)).touch()
    return tmp_path


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (f"{BF16} amx_tile amx_bf16 amx_int8", "amx"),
        (f"{BF16} amx_tile amx_int8", "avx512_bf16"),
        (BF16, "avx512_bf16"),
        (V4, "x86_64_v4"),
        (f"{V3} avx_vnni", "x86_64_v3"),  # the class's own library is missing
        (V3, "x86_64_v3"),
        ("fp asimd aes", "armv8"),
        ("fp asimd atomics asimdhp asimddp", "armv8_dotprod"),
        ("fp asimd atomics asimdhp asimddp sve i8mm bf16", "armv8_i8mm"),
    ],
)
def test_the_best_that_runs_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch, words: str, name: str) -> None:
    monkeypatch.setattr(prebuilt, "cpu_features", lambda: f"flags\t\t: {words}")
    found = prebuilt.find()
    assert found is not None
    assert found == folder / f"{name}-{compilation.source_digest()}.so"


def test_an_old_processor_and_other_sources_have_none(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuilt, "cpu_features", lambda: f"flags: {V3.replace('fma', '')}")
    assert prebuilt.find() is None
    monkeypatch.setattr(prebuilt, "cpu_features", lambda: f"flags: {V4}")
    assert prebuilt.find() is not None
    prebuilt._find.cache_clear()
    monkeypatch.setattr(prebuilt, "source_digest", lambda: "another")
    assert prebuilt.find() is None


def test_the_variable_asks_for_a_build(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prebuilt, "cpu_features", lambda: f"flags: {V3}")
    assert prebuilt.find() is not None
    monkeypatch.setenv("SPLITFUSE_NATIVE", "build")
    assert prebuilt.find() is None


def test_a_damaged_library_is_told_and_one_is_built(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(prebuilt, "cpu_features", lambda: f"flags: {V3}")
    monkeypatch.setattr(build, "find_compiler", lambda: None)
    assert build._library.__wrapped__() is None
    assert "the prebuilt CPU library cannot be used" in caplog.text
    assert "no C++ compiler found" in caplog.text


def test_the_words_are_those_that_the_kernel_writes() -> None:
    known = functools.reduce(lambda words, each: words | each.needs, prebuilt.CLASSES, frozenset[str]())
    assert all(word == word.lower() and word.isidentifier() for word in known)
    for machine in ("x86_64", "aarch64"):
        better = [processors.needs for processors in prebuilt.CLASSES if processors.machine == machine]
        # Whoever can run a class can run one of those behind it, down to the last.
        assert all(better[-1] <= needs for needs in better)


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_an_openmp_that_torch_keeps_to_itself_is_shared() -> None:
    """Load torch's OpenMP like torch's wheels for Arm do: with it, our library would not find its symbols."""
    program = f"""
import ctypes, glob
from splitfuse.kernels.cpu.compilation import share_openmp
(path,) = glob.glob({str(Path(torch.__file__).parent / "lib/libgomp*")!r})
ctypes.CDLL(path)
print(hasattr(ctypes.CDLL(None), "omp_get_num_threads"))
share_openmp()
print(hasattr(ctypes.CDLL(None), "omp_get_num_threads"))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "True"]
