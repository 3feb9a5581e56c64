# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of int8 and int8 (W8A8): y = (x₈ w₈ᵀ) · x's scale · w's scale, a scale for each token and output.

For linears and experts of checkpoints that define rounded activations. x is rounded token by token in a kernel of its
own, then the tensor cores multiply bytes, twice as fast as 16 bits, and nothing is converted: N·K bytes are read for
2·M·N·K operations, so an H200 is bound by memory up to some 200 rows. Sums are integers and exact, so neither the tile
nor a split of K nor the number of rows changes a bit.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ...quantize import QuantizedWeight
from ..device_info import DeviceInfo, dependent_launch, device_info
from ..moe_route import ExpertTiles, load_tile
from .few_rows import MIN_SPLIT_BYTES, PROGRAMS_PER_MULTIPROCESSOR, add_splits, finish
from .fp8_linear import round_rows

_MAX_INPUTS = 2**31 // (127 * 128)  # beyond, a sum could leave int32: files may hold -128


class Int8Linear(NamedTuple):
    """Weight [N, K] in int8."""

    values: Tensor  # [N, K] int8
    scales: Tensor  # [N] float32
    bias: Tensor | None  # [N]


class Config(NamedTuple):
    BLOCK_M: int
    BLOCK_N: int
    BLOCK_K: int
    num_warps: int
    num_stages: int


def choose_config(num_rows: int, num_outputs: int, gpu: DeviceInfo) -> Config:
    """Choose the tile, of experts with 0 outputs. Few rows: few_rows.py's in e4m3, 8 KiB of weights a step. Untuned."""
    is_small = gpu.shared_memory < 128 * 1024
    if num_rows <= 16:
        return Config(16, 32, 256, 4, 4 if is_small else 5)
    if num_rows <= 64:
        return Config(64, 64, 128, 4, 2 if gpu.is_amd else 4)
    if gpu.is_amd:
        return Config(128, 128, 64, 8, 2)
    if gpu.has_strong_cores and num_rows > 256 and num_outputs >= 128 * gpu.num_multiprocessors:
        return Config(128, 256, 128, 8, 3)
    return Config(128, 128, 128, 8, 2 if is_small else 3)


def choose_num_splits(num_rows: int, num_outputs: int, num_inputs: int, config: Config, gpu: DeviceInfo) -> int:
    """Return the number of parts of K that are summed concurrently; with larger tiles sums would outweigh weights.

    A part's length is compiled in, so tiles of rows count as a power of two, which a rehearsal at load has.
    """
    num_tiles: int = triton.next_power_of_2(triton.cdiv(num_rows, config.BLOCK_M))
    num_programs = num_tiles * -(-num_outputs // config.BLOCK_N)
    wanted = (PROGRAMS_PER_MULTIPROCESSOR if config.BLOCK_M == 16 else 1) * gpu.num_multiprocessors // num_programs
    return max(min(wanted, num_inputs // MIN_SPLIT_BYTES, 8), 1)


@triton.jit(do_not_specialize=["num_outs"])
def _int8_linear(
    x_ptr, x_scales_ptr, w_ptr, w_scales_ptr, bias_ptr, out_ptr, pairs_ptr, tile_experts_ptr, num_outs,
    TOP_K: tl.constexpr, OUTS_PER_ROW: tl.constexpr, NUM_N: tl.constexpr, NUM_K: tl.constexpr, SPLIT_K: tl.constexpr,
    IS_SPLIT: tl.constexpr, DEPENDENT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write out [outs, NUM_N], if split bare sums [splits, outs, NUM_N] int32; out p is of row p // OUTS_PER_ROW.

    With experts the outs are the pairs of a tile, and w [NUM_N, NUM_K] is that of the tile's expert.
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
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
    sums = tl.full([BLOCK_M, BLOCK_N], 0, tl.int32)
    for start in range(split * SPLIT_K, tl.minimum(split * SPLIT_K + SPLIT_K, NUM_K), BLOCK_K):
        x_mask, w_mask = row_inside[:, None], column_inside[:, None]
        if NUM_K % BLOCK_K:
            x_mask, w_mask = x_mask & (start + ks < NUM_K)[None, :], w_mask & (start + ks < NUM_K)[None, :]
        x = tl.load(x_ptrs + start, mask=x_mask, other=0)
        w = tl.load(w_ptrs + start, mask=w_mask, other=0)
        sums = tl.dot(x, tl.trans(w), sums, out_dtype=tl.int32)
    mask = row_inside[:, None] & column_inside[None, :]
    out_ptrs = out_ptr + outs.to(tl.int64)[:, None] * NUM_N + columns[None, :]
    if IS_SPLIT:
        tl.store(out_ptrs + split.to(tl.int64) * num_outs * NUM_N, sums, mask=mask)
    else:
        x_scale = tl.load(x_scales_ptr + rows, mask=row_inside, other=0.0)
        out = finish(sums.to(tl.float32), w_scales_ptr, bias_ptr, x_scale, weights, column_inside)
        tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=mask)


def has_layout(weight: QuantizedWeight) -> bool:
    """True for symmetric int8 with one scale for each output, and inputs in multiples of a 16-byte load."""
    is_plain = weight.bits == 8 and len(weight.scales) == 1 and weight.offsets is None and weight.super_scales is None
    num_inputs = weight.values.shape[1]
    return is_plain and weight.values.dtype == torch.int8 and num_inputs % 16 == 0 and num_inputs <= _MAX_INPUTS


def pack(weight: QuantizedWeight, bias: Tensor | None) -> Int8Linear:
    """Pack a weight that has a layout. `order` is dropped."""
    return Int8Linear(weight.values.contiguous(), weight.scales[0].float().contiguous(), bias)


def multiply(x: Tensor, packed: Int8Linear, *, config: Config | None = None, num_splits: int | None = None) -> Tensor:
    """x [T, K] with contiguous rows → [T, N] in x's dtype."""
    (num_rows, num_inputs), num_outputs = x.shape, len(packed.values)
    assert packed.values.shape[1] == num_inputs
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    gpu = device_info(x.device)
    config = config or choose_config(num_rows, num_outputs, gpu)
    rounded, x_scales = round_rows(x, dtype=torch.int8)
    num_splits = num_splits or choose_num_splits(num_rows, num_outputs, num_inputs, config, gpu)
    split_k = triton.cdiv(triton.cdiv(num_inputs, config.BLOCK_K), num_splits) * config.BLOCK_K
    num_splits = triton.cdiv(num_inputs, split_k)
    sums = out
    if num_splits > 1:
        sums = torch.empty((num_splits, num_rows, num_outputs), dtype=torch.int32, device=x.device)
    grid = (triton.cdiv(num_rows, config.BLOCK_M), triton.cdiv(num_outputs, config.BLOCK_N), num_splits)
    _int8_linear[grid](
        rounded, x_scales, packed.values, packed.scales, packed.bias, sums, None, None, num_rows,
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
        add_splits(sums, packed.bias, out, x_scales=x_scales, w_scales=packed.scales)
    return out


def multiply_pairs(
    x: Tensor,
    packed: Int8Linear,
    tiles: ExpertTiles,
    *,
    num_pairs: int,
    top_k: int,
    num_experts: int,
    config: Config,
) -> Tensor:
    """Multiply x [rows, K], `num_pairs // rows` pairs a row, by weights stacked to [E · N, K] → [num_pairs, N]."""
    num_outputs = len(packed.values) // num_experts
    rounded, x_scales = round_rows(x, dtype=torch.int8)
    out, gpu = torch.empty((num_pairs, num_outputs), dtype=x.dtype, device=x.device), device_info(x.device)
    _int8_linear[(len(tiles.experts), triton.cdiv(num_outputs, config.BLOCK_N), 1)](
        rounded, x_scales, packed.values, packed.scales, packed.bias, out, tiles.pairs, tiles.experts, num_pairs,
        TOP_K=top_k,
        OUTS_PER_ROW=num_pairs // len(x),
        NUM_N=num_outputs,
        NUM_K=x.shape[1],
        SPLIT_K=x.shape[1],
        IS_SPLIT=False,
        **dependent_launch(gpu),
        **config._asdict(),
    )  # fmt: skip
    return out
