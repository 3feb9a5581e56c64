"""Prebuilt CPU libraries: a wheel has one for each class of processors (`make wheel`). Imports no torch.

The best library that the processor can run is taken. Without one, as in a checkout, compilation.py builds for the very
processor; SPLITFUSE_NATIVE=build always builds.
"""

import functools
import os
from pathlib import Path
from typing import NamedTuple

from .compilation import cpu_features, source_digest

FOLDER = Path(__file__).with_name("prebuilt")


class ProcessorClass(NamedTuple):
    """Processors for which one library serves."""

    name: str
    options: tuple[str, ...]  # of the compiler
    needs: frozenset[str]  # words in the flags (Arm: features) of /proc/cpuinfo
    machine: str = "x86_64"


# Levels of the x86-64 psABI, and what our kernels use beyond them. Linux's words for Arm's extensions: asimddp is
# dotprod, asimdhp fp16, atomics LSE.
_V3 = frozenset(["abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"])
_V4 = _V3 | frozenset(["avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"])
_BF16 = _V4 | frozenset(["avx512_vnni", "avx512_bf16", "avx512vbmi"])
_DOTPROD = frozenset(["asimd", "asimddp", "asimdhp", "atomics"])
_BF16_OPTIONS = ("-march=x86-64-v4", "-mavx512vnni", "-mavx512bf16", "-mavx512vbmi")
CLASSES = (  # the best first
    ProcessorClass(
        "amx",
        (*_BF16_OPTIONS, "-mamx-tile", "-mamx-bf16", "-mamx-int8"),
        _BF16 | frozenset(["amx_tile", "amx_bf16", "amx_int8"]),
    ),
    ProcessorClass("avx512_bf16", _BF16_OPTIONS, _BF16),
    ProcessorClass("x86_64_v4", ("-march=x86-64-v4",), _V4),
    ProcessorClass("avx_vnni", ("-march=x86-64-v3", "-mavxvnni"), _V3 | {"avx_vnni"}),
    ProcessorClass("x86_64_v3", ("-march=x86-64-v3",), _V3),
    ProcessorClass("armv8_i8mm", ("-march=armv8.2-a+dotprod+fp16+i8mm",), _DOTPROD | {"i8mm"}, "aarch64"),
    ProcessorClass("armv8_dotprod", ("-march=armv8.2-a+dotprod+fp16",), _DOTPROD, "aarch64"),
    ProcessorClass("armv8", ("-march=armv8-a", "-mno-outline-atomics"), frozenset(["asimd"]), "aarch64"),
)


def file_name(processors: ProcessorClass) -> str:
    """Return the name of a class's library; other sources have another name."""
    return f"{processors.name}-{source_digest()}.so"


def find() -> Path | None:
    """Return the library for this processor; None if there is none or SPLITFUSE_NATIVE=build."""
    return None if os.environ.get("SPLITFUSE_NATIVE") == "build" else _find(FOLDER, cpu_features())


@functools.cache
def _find(folder: Path, features: str) -> Path | None:
    if not folder.is_dir():
        return None
    words = set(features.split())
    paths = (folder / file_name(processors) for processors in CLASSES if processors.needs <= words)
    return next((path for path in paths if path.is_file()), None)
