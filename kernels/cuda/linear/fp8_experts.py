# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Experts' products in e4m3 and e4m3 (Micikevicius et al. 2022) for many pairs, where memory is no longer the bound.

x is rounded token by token or, where weights have a scale for each 128 inputs, group by group (DeepSeek-AI 2024, V3),
by the formula of `quantized_tile.prepare_rows`, which rounds it for few pairs. The weights are the words of
quantized_tile.py as bytes: within a step their inputs are in another order, and x is written in that order, too. Tensor
cores add 128 products at most before the sum goes to float32, because Hopper's keep some 14 bits.
2·M·N·K operations read N·K bytes of weights and M·K of x: an H200 computes longer than it reads from some 200 pairs of
an expert on.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..dependent import wait_for_previous
from ..device_info import DeviceInfo, dependent_launch, device_info
from ..moe_route import ExpertTiles, load_tile
from ..quantized_linear import QuantizedLinear
from .quantized_tile import load_scales, round_groups


class Config(NamedTuple):
    BLOCK_M: int  # pairs
    BLOCK_N: int  # outputs
    num_warps: int
    num_stages: int


def choose_config(num_pairs: int, num_experts: int, gpu: DeviceInfo) -> Config:
    """Choose the tile by an expert's average number of pairs.

    H200, 2026-11-27, 8 of 128 experts of 2048 x 768 in blocks, us: with 64 rows a tile 430, 458 and 1109 for 256, 1024
    and 4096 tokens; with 16 rows 231 for 256, with 128 rows 713 and 1334 for the others.
    """
    if gpu.has_strong_cores:
        return Config(16, 128, 4, 4) if num_pairs <= 24 * num_experts else Config(64, 128, 4, 3)
    # With 4 warps 64 pairs take all registers, and spill on 8.9.
    return Config(64, 128, 8, 3) if num_pairs > 16 * num_experts else Config(32, 128, 4, 3)


def has_layout(weight: QuantizedLinear) -> bool:
    """True for e4m3 with a scale for each output or each 128 inputs."""
    return weight.is_float and weight.bits == 8 and weight.group in (0, 128) and weight.step % (weight.group or 1) == 0


@triton.jit
def _round_groups(
    x_ptr, y_ptr, scales_ptr, x_stride, NUM_K: tl.constexpr, PADDED_K: tl.constexpr, GROUP: tl.constexpr,
    BLOCK_K: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write y [rows, PADDED_K], bytes of x / scale in the order of a weight's bytes, and scales [groups or 1, rows]."""
    wait_for_previous(DEPENDENT)
    row, ks = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * x_stride + ks, mask=ks < NUM_K, other=0.0).to(tl.float32)
    values, scales = round_groups(x, GROUP, BLOCK)
    NUM_GROUPS: tl.constexpr = BLOCK // GROUP if GROUP else 1
    groups = tl.arange(0, NUM_GROUPS)
    is_group = groups < (PADDED_K // GROUP if GROUP else 1)
    tl.store(scales_ptr + groups * tl.num_programs(0) + row, scales, mask=is_group)
    # Blocks 0, 1, 2, 3 of a step are bytes 0, 2, 1, 3 of a word.
    blocks = tl.reshape(values, [BLOCK // (4 * BLOCK_K), 2, 2, BLOCK_K])
    y = tl.reshape(tl.permute(blocks, [0, 3, 2, 1]), [BLOCK])
    tl.store(y_ptr + row * PADDED_K + ks, y, mask=ks < PADDED_K)


@triton.jit(do_not_specialize=["num_pairs", "num_rows"])
def _fp8_experts(
    x_ptr, x_scales_ptr, w_ptr, scales_ptr, bias_ptr, out_ptr, pairs_ptr, tile_experts_ptr, num_pairs, num_rows,
    NUM_N: tl.constexpr, NUM_EXPERTS: tl.constexpr, NUM_K: tl.constexpr, TOP_K: tl.constexpr,
    PAIRS_PER_ROW: tl.constexpr, GROUP: tl.constexpr, SCALE_ROWS: tl.constexpr, BLOCK_K: tl.constexpr,
    DEPENDENT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """out[p] = w x[p // PAIRS_PER_ROW], where w [NUM_N, NUM_K] is the tile's expert's. x comes from `_round_groups`."""
    wait_for_previous(DEPENDENT)
    expert, pairs = load_tile(pairs_ptr, tile_experts_ptr, num_pairs, TOP_K, triton.next_power_of_2(TOP_K), BLOCK_M)
    if expert < 0:
        return
    # Padding has any row, because it is not stored; so have outputs beyond the last.
    rows = tl.minimum(pairs // PAIRS_PER_ROW, num_rows - 1)
    columns, ks = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    readable = tl.minimum(columns, NUM_N - 1)
    outputs = expert * NUM_N + readable
    NUM_SCALES: tl.constexpr = (NUM_N + SCALE_ROWS - 1) // SCALE_ROWS
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * NUM_K + ks[None, :]
    w_ptrs = w_ptr + outputs[:, None] * NUM_K + ks[None, :]
    x_scale_ptrs, w_scale_ptrs = x_scales_ptr + rows, scales_ptr + expert * NUM_SCALES + readable // SCALE_ROWS
    out = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    for start in range(0, NUM_K, BLOCK_K):
        x = tl.load(x_ptrs + start).to(tl.float8e4nv, bitcast=True)
        w = tl.load(w_ptrs + start).to(tl.float8e4nv, bitcast=True)
        if GROUP:
            group = start // GROUP
            x_scale = tl.load(x_scale_ptrs + group * num_rows)
            w_scale = load_scales(w_scale_ptrs, group, NUM_EXPERTS * NUM_SCALES)
            out += tl.dot(x, tl.trans(w)) * x_scale[:, None] * w_scale[None, :]
        else:
            out = tl.dot(x, tl.trans(w), out, max_num_imprecise_acc=BLOCK_K)
    if not GROUP:
        out = out * tl.load(x_scale_ptrs)[:, None] * load_scales(w_scale_ptrs, 0, 0)[None, :]
    if bias_ptr is not None:
        out += tl.load(bias_ptr + outputs).to(tl.float32)[None, :]
    out_ptrs = out_ptr + pairs.to(tl.int64)[:, None] * NUM_N + columns[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=(pairs < num_pairs)[:, None] & (columns < NUM_N)[None, :])


def multiply_pairs(
    x: Tensor, weight: QuantizedLinear, bias: Tensor | None, tiles: ExpertTiles, config: Config
) -> Tensor:
    """Multiply x [rows, K], each row for an equal number of pairs, by weights [E · N, K] → [num_pairs, N]."""
    num_outputs, launch = len(weight.values) // tiles.num_experts, dependent_launch(device_info(x.device))
    values, scales = _rounded(x, weight)
    out = torch.empty((tiles.num_pairs, num_outputs), dtype=x.dtype, device=x.device)
    _fp8_experts[tiles.grid(num_outputs, config.BLOCK_N)](
        values, scales, weight.values.view(torch.uint8), weight.scales, bias, out, tiles.pairs, tiles.experts,
        tiles.num_pairs, len(x),
        NUM_N=num_outputs,
        NUM_EXPERTS=tiles.num_experts,
        NUM_K=weight.padded_inputs,
        TOP_K=tiles.top_k,
        PAIRS_PER_ROW=tiles.num_pairs // len(x),
        GROUP=weight.group,
        SCALE_ROWS=weight.scale_rows,
        BLOCK_K=weight.step,
        **launch,
        **config._asdict(),
    )  # fmt: skip
    return out


def _rounded(x: Tensor, weight: QuantizedLinear) -> tuple[Tensor, Tensor]:
    """Round x [T, K], contiguous rows → (bytes of e4m3 [T, padded K] in the order of the weight's, scales [G, T])."""
    num_rows, num_inputs = x.shape
    assert x.stride(1) == 1
    padded = weight.padded_inputs
    values = torch.empty((num_rows, padded), dtype=torch.uint8, device=x.device)
    scales = torch.empty((len(weight.scales), num_rows), dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(padded)
    _round_groups[(num_rows,)](
        x, values, scales, x.stride(0), NUM_K=num_inputs, PADDED_K=padded, GROUP=weight.group, BLOCK_K=weight.block,
        BLOCK=block, num_warps=min(max(block // 512, 1), 16), **dependent_launch(device_info(x.device)),
    )  # fmt: skip
    return values, scales
