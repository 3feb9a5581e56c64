# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of bytes and bytes, int8 or e4m3: y = (x₈ w₈ᵀ) · x's scale · w's scale, a scale for each row and output.

The tensor cores multiply bytes, twice as fast as 16 bits, and nothing is converted: N·K bytes are read for 2·M·N·K
operations, so an H200 is bound by memory up to some 200 rows.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..dependent import wait_for_previous
from ..device_info import DeviceInfo, dependent_launch, device_info
from ..moe_route import ExpertTiles, load_tile
from .few_rows import MIN_SPLIT_BYTES, PROGRAMS_PER_MULTIPROCESSOR, Weight, add_splits, finish


class Config(NamedTuple):
    """Tile of a product."""

    BLOCK_M: int  # rows, or an expert's pairs
    BLOCK_N: int  # outputs; of experts' gate and up together, half of them are gate's
    BLOCK_K: int
    num_warps: int
    num_stages: int


def choose_config(num_rows: int, num_outputs: int, gpu: DeviceInfo) -> Config:
    """Choose the tile, of experts with 0 outputs. Few rows: few_rows.py's in e4m3, 8 KiB of weights a step.

    H200, 2026-11-27, us of 4096 -> 28672: e4m3 at 16 and 32 rows 34 and 36, by cuBLAS 50 and 46; int8 at 32 rows with a
    tile of 64 x 64 42, of 32 x 64 36, at 64 rows with one of 64 x 64 42, of 64 x 128 36.
    """
    is_small, is_wide = gpu.shared_memory < 128 * 1024, num_outputs >= 128 * gpu.num_multiprocessors
    if num_rows <= 16:
        return Config(16, 32, 256, 4, 4 if is_small else 5)
    if num_rows <= 32 and num_outputs and gpu.capability == 90:
        return Config(32, 64, 128, 4, 5)
    if num_rows <= 64:
        return Config(64, 128 if is_wide and gpu.has_strong_cores else 64, 128, 4, 2 if gpu.is_amd else 4)
    if gpu.is_amd:
        return Config(128, 128, 64, 8, 2)
    if gpu.has_strong_cores and num_rows > 256 and is_wide:
        return Config(128, 256, 128, 8, 3)
    return Config(128, 128, 128, 8, 2 if is_small else 3)


def choose_num_splits(num_rows: int, num_outputs: int, num_inputs: int, config: Config, gpu: DeviceInfo) -> int:
    """Return the number of parts of K that are summed concurrently; with larger tiles sums would outweigh weights.

    A part's length is compiled in, so tiles of rows count as a power of two, which a rehearsal at load has.
    """
    num_tiles: int = triton.next_power_of_2(triton.cdiv(num_rows, config.BLOCK_M))
    num_programs = num_tiles * -(-num_outputs // config.BLOCK_N)
    wanted = (PROGRAMS_PER_MULTIPROCESSOR if config.BLOCK_M <= 32 else 1) * gpu.num_multiprocessors // num_programs
    return max(min(wanted, num_inputs // MIN_SPLIT_BYTES, 8), 1)


@triton.jit(do_not_specialize=["num_outs"])
def _byte_linear(
    x_ptr, x_scales_ptr, w_ptr, w_scales_ptr, bias_ptr, out_ptr, pairs_ptr, tile_experts_ptr, num_outs,
    TOP_K: tl.constexpr, OUTS_PER_ROW: tl.constexpr, NUM_N: tl.constexpr, NUM_K: tl.constexpr, SPLIT_K: tl.constexpr,
    IS_SPLIT: tl.constexpr, DEPENDENT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write out [outs, NUM_N], if split bare sums [splits, outs, NUM_N]; out p is of row p // OUTS_PER_ROW.

    Sums of int8 are int32 and exact. uint8 are bytes of e4m3; Hopper's tensor cores keep some 14 bits, so a step's sum
    goes to float32. With experts the outs are the pairs of a tile, and w [NUM_N, NUM_K] is the tile's expert's.
    """
    wait_for_previous(DEPENDENT)
    # Programs of equal outputs run concurrently, so that weights which one program reads are in L2 for the others.
    tile = tl.program_id(0)
    outs, expert = tile * BLOCK_M + tl.arange(0, BLOCK_M), tile.to(tl.int64) * 0
    if tile_experts_ptr is not None:
        expert, outs = load_tile(pairs_ptr, tile_experts_ptr, num_outs, TOP_K, triton.next_power_of_2(TOP_K), BLOCK_M)
        if expert < 0:
            return
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split, ks = tl.program_id(2), tl.arange(0, BLOCK_K)
    row_inside, column_inside = outs < num_outs, columns < NUM_N
    rows, weights = outs // OUTS_PER_ROW, expert * NUM_N + columns
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * NUM_K + ks[None, :]
    w_ptrs = w_ptr + weights[:, None] * NUM_K + ks[None, :]
    IS_FLOAT: tl.constexpr = w_ptr.dtype.element_ty == tl.uint8
    sums = tl.full([BLOCK_M, BLOCK_N], 0, tl.float32 if IS_FLOAT else tl.int32)
    for start in range(split * SPLIT_K, tl.minimum(split * SPLIT_K + SPLIT_K, NUM_K), BLOCK_K):
        x_mask, w_mask = row_inside[:, None], column_inside[:, None]
        if NUM_K % BLOCK_K:
            x_mask, w_mask = x_mask & (start + ks < NUM_K)[None, :], w_mask & (start + ks < NUM_K)[None, :]
        x = tl.load(x_ptrs + start, mask=x_mask, other=0)
        w = tl.load(w_ptrs + start, mask=w_mask, other=0)
        if IS_FLOAT:
            x, w = x.to(tl.float8e4nv, bitcast=True), w.to(tl.float8e4nv, bitcast=True)
            sums = tl.dot(x, tl.trans(w), sums, max_num_imprecise_acc=BLOCK_K)
        else:
            sums = tl.dot(x, tl.trans(w), sums, out_dtype=tl.int32)
    mask = row_inside[:, None] & column_inside[None, :]
    out_ptrs = out_ptr + outs.to(tl.int64)[:, None] * NUM_N + columns[None, :]
    if IS_SPLIT:
        tl.store(out_ptrs + split.to(tl.int64) * num_outs * NUM_N, sums, mask=mask)
    else:
        x_scale = tl.load(x_scales_ptr + rows, mask=row_inside, other=0.0)
        out = finish(sums.to(tl.float32), w_scales_ptr, bias_ptr, x_scale, weights, column_inside)
        tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=mask)


def multiply(
    x: Tensor,
    x_scales: Tensor,
    weight: Weight,
    *,
    dtype: torch.dtype,
    config: Config | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """Multiply x [T, K], contiguous, with x_scales [T] float32 → [T, N] in `dtype`.

    x and the weight, which has scales, are int8, or uint8 with bytes of e4m3.
    """
    (num_rows, num_inputs), num_outputs = x.shape, len(weight.values)
    assert weight.values.shape[1] == num_inputs
    assert weight.values.dtype == x.dtype
    out = torch.empty((num_rows, num_outputs), dtype=dtype, device=x.device)
    if num_rows == 0:
        return out
    gpu = device_info(x.device)
    config = config or choose_config(num_rows, num_outputs, gpu)
    num_splits = num_splits or choose_num_splits(num_rows, num_outputs, num_inputs, config, gpu)
    split_k = triton.cdiv(triton.cdiv(num_inputs, config.BLOCK_K), num_splits) * config.BLOCK_K
    num_splits = triton.cdiv(num_inputs, split_k)
    sums = out
    if num_splits > 1:
        sums_dtype = torch.int32 if x.dtype == torch.int8 else torch.float32
        sums = torch.empty((num_splits, num_rows, num_outputs), dtype=sums_dtype, device=x.device)
    grid = (triton.cdiv(num_rows, config.BLOCK_M), triton.cdiv(num_outputs, config.BLOCK_N), num_splits)
    _byte_linear[grid](
        x, x_scales, *weight, sums, None, None, num_rows,
        TOP_K=1,
        OUTS_PER_ROW=1,
        NUM_N=num_outputs,
        NUM_K=num_inputs,
        SPLIT_K=split_k,
        IS_SPLIT=num_splits > 1,
        **dependent_launch(gpu),
        **config._asdict(),
    )  # fmt: skip
    if num_splits > 1:
        add_splits(sums, weight.bias, out, x_scales=x_scales, w_scales=weight.scales)
    return out


def multiply_pairs(
    x: Tensor, x_scales: Tensor, weight: Weight, tiles: ExpertTiles, *, dtype: torch.dtype, config: Config
) -> Tensor:
    """Multiply x [rows, K], each row for an equal number of pairs, by weights [E · N, K] → [num_pairs, N]."""
    num_outputs = len(weight.values) // tiles.num_experts
    out = torch.empty((tiles.num_pairs, num_outputs), dtype=dtype, device=x.device)
    _byte_linear[tiles.grid(num_outputs, config.BLOCK_N)](
        x, x_scales, *weight, out, tiles.pairs, tiles.experts, tiles.num_pairs,
        TOP_K=tiles.top_k,
        OUTS_PER_ROW=tiles.num_pairs // len(x),
        NUM_N=num_outputs,
        NUM_K=x.shape[1],
        SPLIT_K=x.shape[1],
        IS_SPLIT=False,
        **dependent_launch(device_info(x.device)),
        **config._asdict(),
    )  # fmt: skip
    return out
