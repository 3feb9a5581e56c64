"""Kernels' machine code for GPUs that need not be there: compile_report.py's findings must match the claims."""

import json
import os
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
from instruction_budget import bytes_per_step, main_loop

# More GPUs, a minute per GPU: SPLITFUSE_TEST_ALL=1 SPLITFUSE_TEST_ARCHES=80,89,90,100,120 pytest THIS FILE
ARCHES = [int(arch) for arch in os.environ.get("SPLITFUSE_TEST_ARCHES", "90").split(",")]
DOTS = (
    *("prefill", "decode", "latent_attention", "grouped_matmul", "quantized_matmul", "quantized_experts", "few_rows"),
    *("byte_linear", "fp8_experts", "shrink", "expand"),
)
SHARED_MEMORY = {80: 166_912, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376, 942: 65_536, 950: 163_840}
KERNELS = {
    "prefill", "decode", "merge_pieces", "rope_and_cache", "rms_norm", "layer_norm", "activate", "activate_mul",
    "copy_blocks", "max_logits", "max_of_chunks", "collect_nearest",
    "find_threshold", "mask_far",
    "route", "count_pairs", "group_by_expert", "grouped_matmul", "weigh",
    "quantized_matmul", "quantized_experts", "prepare_rows", "widen_weight", "few_rows", "add_splits", "round_rows",
    "byte_linear", "fp8_experts", "round_groups", "shrink", "expand",
    "latent_attention", "merge_splits", "latent_and_cache",
    "convolve", "keep_inputs", "run_state", "gated_rms_norm", "gate_mul",
}  # fmt: skip
WITHOUT_FP8 = KERNELS - {"fp8_experts", "round_groups"}  # tensor cores that do not take e4m3: below 8.9, and AMD's


@lru_cache
def report(arch: int, *options: str) -> list[dict[str, Any]]:
    """Return every kernel of compile_report.SHAPES, from its own process: in this one kernels may be interpreted."""
    command = [
        sys.executable, str(Path(__file__).with_name("compile_report.py")), "--json", "--arch", str(arch), *options,
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def is_rare(row: dict[str, Any]) -> bool:
    """True for attention and experts in float32, which work, but no user waits for them."""
    return row["kernel"] in ("prefill", "decode", "latent_attention", "grouped_matmul") and "float32" in row["shape"]


def is_known(row: dict[str, Any]) -> bool:
    """True for a known spill over a cache of e4m3: Gemma's heads, 32 bytes on 9.0; six other tiles all spilled, too.

    Decodes spill up to 32 bytes, once a piece: the price of 128 registers, with which all programs run at once. On 12.0
    Falcon's, of 71 heads a group, spill 56. Prompts of experts in e4m3 spill 8: a stage less takes 1.2 times as long.
    """
    if row["kernel"] == "decode" and "float8" in row["shape"] and not row["spills_in_loop"]:
        return bool(row["spilled"] <= 32)
    if row["kernel"] == "decode" and "G71" in row["shape"] and row["arch"] == 120 and not row["spills_in_loop"]:
        return bool(row["spilled"] <= 56)
    if row["kernel"] == "quantized_experts" and "T2048" in row["shape"] and not row["spills_in_loop"]:
        return bool(row["spilled"] <= 8)
    is_gemma = row["kernel"] == "prefill" and "D256" in row["shape"] and "float8" in row["shape"]
    return is_gemma and row["arch"] == 90 and row["spilled"] <= 32


def test_a_kernel_of_each_kind_builds() -> None:
    """Compile the first shape of each kind; all of them, a minute of processor time a GPU, are `make thorough`'s."""
    assert {row["kernel"] for row in report(90, "--first")} <= KERNELS


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ARCHES)
def test_every_kernel_builds(arch: int) -> None:
    rows = report(arch)
    assert {row["kernel"] for row in rows} == (KERNELS if arch >= 89 else WITHOUT_FP8)


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ARCHES)
def test_every_kernel_fits(arch: int) -> None:
    rows = report(arch)
    assert rows
    assert all(row["shared"] <= SHARED_MEMORY[arch] for row in rows)


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ARCHES)
def test_nothing_hot_spills(arch: int) -> None:
    # For 10.0 and 12.0 ptxas pays up to 24 bytes to stay at 64 or 128 registers.
    most = 24 if arch >= 100 else 0
    assert [row for row in report(arch) if row["spilled"] > most and not is_rare(row) and not is_known(row)] == []


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ARCHES)
def test_dots_run_on_tensor_cores(arch: int) -> None:
    warpgroup_instruction = {90: "wgmma.mma_async", 100: "tcgen05.mma"}.get(arch, "mma.sync")
    for row in report(arch):
        expected = ""
        if row["kernel"] in DOTS and not is_rare(row):
            # Decode, and prefill of a few tokens, have 16 dot rows, experts of few 16 or 32: too few for a warpgroup.
            # Falcon's 71 have 128.
            words = row["shape"].split()
            is_small = not {"T1", "T3", "T8", "T16", "T32", "T64"}.isdisjoint(words)
            is_small |= row["kernel"] == "latent_attention"  # 32 rows: 64 leave no registers for sums of 512
            if row["kernel"] in ("quantized_matmul", "quantized_experts"):
                # Its dots' rows are outputs, but 10.0 has few of them: 2 warps.
                is_small = not {"T1", "T16"}.isdisjoint(words) or arch == 100
            if row["kernel"] == "byte_linear":
                is_small = not {"T1", "T32"}.isdisjoint(words) or arch == 100  # Triton has no tcgen05 of int8
            is_small |= row["kernel"] == "decode" and "G71" not in words
            expected = "mma.sync" if is_small else warpgroup_instruction
        assert row["tensor_core"] == expected, row


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ARCHES)
def test_exact_products_and_attention_have_one_instruction(arch: int) -> None:
    """Check that in exact mode decodes, prompts and products of any number of rows use one kind of dots.

    On 9.0, whose tiles they are, nothing spills; elsewhere prompts do, up to 312 bytes, and decodes on 10.0.
    """
    rows = report(arch, "--exact", "--kernel", "decode", "prefill", "few")
    rows = [row for row in rows if row["kernel"] in ("decode", "prefill", "exact_linear") and not is_rare(row)]
    assert {row["kernel"] for row in rows} == {"decode", "prefill", "exact_linear"}
    (instruction,) = {row["tensor_core"] for row in rows}
    assert instruction == {90: "wgmma.mma_async", 100: "tcgen05.mma"}.get(arch, "mma.sync")
    assert [row for row in rows if row["spilled"] and "float8" not in row["shape"] and arch == 90] == []


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ARCHES)
def test_kernels_of_a_decode_wait_before_anything_else(arch: int) -> None:
    """Check that a kernel launched during another touches no memory, and does not end, before that one's end."""
    on_the_way = ("rms_norm", "rope_and_cache", "merge_pieces", "activate_mul", "few_rows")
    on_the_way += ("add_splits", "round_rows", "quantized_matmul", "prepare_rows", "merge_splits", "byte_linear")
    on_the_way += ("route", "count_pairs", "group_by_expert", "grouped_matmul", "weigh", "quantized_experts")
    on_the_way += ("fp8_experts", "round_groups")
    for row in report(arch):
        assert row["waits"] == ("first" if arch >= 90 and row["kernel"] in on_the_way else ""), row


@pytest.mark.thorough
@pytest.mark.parametrize("arch", ARCHES)
def test_loads_are_16_bytes_wide(arch: int) -> None:
    # A rope program holds one token and one KV head: at head size 64, a thread has only 8 bytes.
    narrow = ("max_of_chunks", "route", "count_pairs", "group_by_expert")  # a few numbers a row
    narrow += ("widen_weight",)  # half-bytes
    narrow += ("keep_inputs", "gated_rms_norm")  # 512 channels over 4 warps; a group of 128
    narrow += ("expand",)  # lines of any rank
    rows = [row for row in report(arch) if row["kernel"] not in narrow]
    wide = [row for row in rows if row["kernel"] != "rope_and_cache" or "D64" not in row["shape"]]
    assert [row for row in wide if row["widest_load"] != 16] == []


@pytest.mark.thorough
@pytest.mark.parametrize("arch", [942, 950])
def test_amds_compiler_takes_every_kernel(arch: int) -> None:
    """Check that all are there, fit, and multiply on matrix cores. None has run on such a GPU."""
    rows = report(arch)
    assert {row["kernel"] for row in rows} == WITHOUT_FP8
    assert all(row["shared"] <= SHARED_MEMORY[arch] for row in rows)
    assert [row for row in rows if row["kernel"] in DOTS and row["tensor_core"] != "mfma"] == []
    assert [row for row in rows if row["spilled"] > 24 and row["kernel"] != "latent_attention"] == []


def most_issue(row: dict[str, Any]) -> float:
    """Return the bar in percent of the instructions that memory speed leaves: real kernels issue half of all slots."""
    words, kernel = set(row["shape"].split()), row["kernel"]
    tokens = next(word for word in row["shape"].split() if word[0] == "T")
    if kernel == "quantized_experts" and "2880x2880" in words:
        # MXFP4: 9 instructions turn 8 weights into float16, and each row's sums of 32 inputs are scaled
        # The tiles of 1 and 2,048 tokens are an H200's best of 11 (2026-11-27), though others issue less.
        return {"T1": 85, "T64": 80, "T2048": 143}[tokens]
    if kernel == "quantized_experts" and tokens == "T2048":
        return 78  # bound by tensor cores
    if kernel == "quantized_matmul" and "e2m1" in words:
        return {"T1": 72, "T16": 88, "T256": 91}[tokens]
    if kernel == "quantized_matmul" and "G32" in words:  # Q8_0 and Q4_0: each 32 inputs have a scale
        return {"T1": 65, "T16": 70, "T32": 90, "T256": 125}[tokens]
    if kernel == "quantized_matmul" and tokens == "T256":
        return 100  # bound by tensor cores: this tile was faster on an H100 than one with 55 %
    if kernel == "decode" and "D80" in words:
        return 60  # its keys and values are padded to 128
    if kernel == "decode" and "G71" in words:
        return 85  # 71 query heads share each key: not bound by memory
    return 72 if kernel in ("quantized_matmul", "quantized_experts") or "float8_e4m3fn" in words else 50


@pytest.mark.thorough
def test_memory_bound_kernels_leave_memory_time() -> None:
    """Check the main loops' instructions and conversions against memory's speed on an H200 (instruction_budget.py)."""
    rows = [row for row in report(90) if row["issue"]]
    assert {row["kernel"] for row in rows} == {
        "decode", "few_rows", "fp8_experts", "grouped_matmul", "byte_linear", "quantized_experts", "quantized_matmul",
    }  # fmt: skip
    assert [row for row in rows if row["issue"] > most_issue(row)] == []
    assert [row for row in rows if row["conversions"] > 50] == []


def test_the_budget_counts_one_loop() -> None:
    """Check the count on loops by hand: no predicates, no addresses, no loop around it or without tensor cores."""
    text = """
.L_x_2:
.L_x_0:
        /*0000*/                   HFMA2.MMA R1, -RZ, RZ, 0, 0 ;
        /*0010*/              @!P0 BRA `(.L_x_0) ;
.L_x_1:
        /*0020*/                   F2FP.F16.E4M3.UNPACK_B R4, R5 ;
        /*0030*/                   HMMA.16816.F32 R8, R4, R6, R8 ;
        /*0040*/               @P6 BRA `(.L_x_1) ;
        /*0050*/               @P1 BRA `(.L_x_2) ;
        /*0060*/                   EXIT ;
"""
    assert [line.split()[0] for line in main_loop(text)] == ["F2FP.F16.E4M3.UNPACK_B", "HMMA.16816.F32", "BRA"]
    fp8 = {"FP8": 1, "BLOCK_N": 32, "BLOCK_K": 256, "IS_GATED": False}
    assert bytes_per_step("few_rows", fp8) == 8192
    int4 = {"BLOCK_N": 64, "BLOCK_K": 32, "BITS": 4, "GROUP": 128, "SCALE_ROWS": 1, "SCALE_BYTES": 4}
    assert bytes_per_step("quantized_matmul", int4) == 64 * (128 + 2 * 8)  # two groups, each float32 twice


@pytest.mark.thorough
def test_three_decode_programs_share_a_multiprocessor() -> None:
    """Check PROGRAMS_PER_MULTIPROCESSOR: the shared memory and the registers of an H100 hold three programs.

    A work list deals equal shares to all of them, so one that has to wait would double the time.
    """
    for row in report(90):
        if row["kernel"] == "decode" and not any(rare in row["shape"] for rare in ("float32", "D256", "G71")):
            assert 3 * (row["shared"] + 1024) <= 233_472, row  # the system takes 1 KiB of a program's
            assert 3 * row["num_warps"] * 32 * row["registers"] <= 65_536, row
