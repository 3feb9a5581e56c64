"""Instructions of a kernel's main loop, as shares of what memory speed leaves: no tile search brings back what is lost.

The loop is the longest innermost one with tensor core instructions, disassembled by the nvdisasm of Triton's wheel.
Issue: warps x instructions over the 4 that a multiprocessor issues per clock. Conversions: F2FP, I2F and the like,
at 64 lanes per clock. Memory: the bytes that one pass of the loop must read once, at an H200's 4.3 TB/s over 132
multiprocessors at 1.755 GHz. Above some 50 % a kernel does not reach memory speed, because real ones issue 2 to 2.5
instructions per clock.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import triton

BYTES_PER_CLOCK = 4.3e12 / 132 / 1.755e9  # of a multiprocessor
TENSOR_CORE = re.compile(r"^[A-Z]*MMA\b")  # HFMA2.MMA is none
CONVERSION = re.compile(r"^(F2F|I2F|F2I|I2I)")
_LABEL = re.compile(r"(\.L_x_\d+):")
_LINE = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;")
_BRANCH = re.compile(r"^BRA\b.*`\((\.L_x_\d+)\)")


@dataclass(frozen=True)
class Budget:
    """Main loop of a kernel. Shares are of the clocks in which memory delivers the loop's bytes."""

    instructions: int
    num_bytes: int
    issue: float
    conversions: float
    spills: int


def budget(kernel: Any) -> Budget | None:
    """Return the budget of a compiled kernel that is bound by memory; None for all others."""
    name, values = kernel.metadata.name.strip("_"), constants(kernel)
    num_bytes = bytes_per_step(name, values)
    loop = main_loop(disassembled(kernel.asm["cubin"])) if num_bytes else []
    if not loop:
        return None
    clocks, num_warps = num_bytes / BYTES_PER_CLOCK, kernel.metadata.num_warps
    conversions = sum(bool(CONVERSION.match(line)) for line in loop)
    return Budget(
        instructions=len(loop),
        num_bytes=num_bytes,
        issue=num_warps * len(loop) / 4 / clocks,
        conversions=num_warps * conversions * 32 / 64 / clocks,
        spills=sum(line.startswith(("LDL", "STL")) for line in loop),
    )


def constants(kernel: Any) -> dict[str, Any]:
    """Return the kernel's compile-time arguments by name, and SCALE_BYTES; a pointer that is None counts as one."""
    names = kernel.src.fn.arg_names
    values = {names[path[0]]: value for path, value in kernel.src.constants.items()}
    scales = kernel.src.signature.get("scales_ptr", "")
    bits = re.search(r"\d+$", "8" if scales == "*i32" else scales)  # exponents of four groups
    return values | ({"SCALE_BYTES": int(bits[0]) // 8} if bits else {})


def bytes_per_step(name: str, values: dict[str, Any]) -> int:
    """Return the bytes that a step of a kernel's loop reads from memory: weights with their scales, or keys and values.

    Rows of x come from the L2 cache, and are few. 0: a kernel that is not bound by memory.
    """
    if name == "few_rows":
        element = 1 if values["FP8"] else 2
        return element * values["BLOCK_N"] * values["BLOCK_K"] * (2 if values["IS_GATED"] else 1)
    if name == "byte_linear" and values["BLOCK_M"] <= 64:
        return int(values["BLOCK_N"] * values["BLOCK_K"])
    if name == "fp8_experts" and values["BLOCK_M"] <= 64:
        num_scales = -(-values["BLOCK_N"] // values["SCALE_ROWS"]) if values["GROUP"] else 0
        return int(values["BLOCK_N"] * values["BLOCK_K"] + num_scales * values["SCALE_BYTES"])
    if name == "decode":
        element = 1 if values["FP8"] else 2
        return 2 * element * values["BLOCK_N"] * values["HEAD_DIM"]
    if name == "grouped_matmul" and values["BLOCK_M"] <= 32:
        return 2 * values["BLOCK_N"] * values["BLOCK_K"] * (2 if values["IS_GATED"] else 1)
    if name in ("quantized_matmul", "quantized_experts"):
        words = values["BLOCK_N"] * values["BLOCK_K"]
        num_groups = 32 // values["BITS"] * values["BLOCK_K"] // values["GROUP"] if values["GROUP"] else 0
        scales = num_groups * -(-values["BLOCK_N"] // values["SCALE_ROWS"]) * values["SCALE_BYTES"]
        return 4 * words + scales * (1 if "offsets_ptr" in values else 2)
    return 0


@lru_cache
def disassembled(cubin: bytes) -> str:
    nvdisasm = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "nvdisasm"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(nvdisasm), "-c", "-ndf", file.name]  # no data flow: a quarter faster
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main_loop(text: str) -> list[str]:
    """Return the instructions of the longest innermost loop with tensor core instructions, without predicates."""
    lines: list[str] = []
    labels: dict[str, int] = {}
    loops: list[range] = []
    for row in text.splitlines():
        if label := _LABEL.match(row.strip()):
            labels[label[1]] = len(lines)
        elif line := _LINE.match(row):
            lines.append(line[1])
            branch = _BRANCH.match(line[1])
            if branch and branch[1] in labels:
                loops.append(range(labels[branch[1]], len(lines)))
    loops = [loop for loop in loops if any(TENSOR_CORE.search(lines[place]) for place in loop)]
    innermost = [loop for loop in loops if not any(_is_inside(other, loop) for other in loops)]
    longest = max(innermost, key=len, default=range(0))
    return lines[longest.start : longest.stop]


def _is_inside(inner: range, outer: range) -> bool:
    return inner != outer and outer.start <= inner.start and inner.stop <= outer.stop
