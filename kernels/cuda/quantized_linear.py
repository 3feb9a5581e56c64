# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products with quantized weights (quantize.py): y = x wᵀ, w = scale · (u - zero) + offset, widened before the dot.

Few rows: one program takes BLOCK_M rows and BLOCK_N outputs. The dot is with u - zero alone, which x's dtype holds
exactly; scale and offset are applied after it, per output or per output and group (Σ x · w = scale · Σ x · (u - zero) +
offset · Σ x). At 4 bits N·K/2 bytes of values (and 8·N·K/group of float32 scales and offsets) are read for 2·M·N·K
operations: 4·M per byte, so bound by memory up to some 64 rows.
Many rows: the weight is widened once into a buffer and cuBLAS multiplies. This moves N·K·(bits/8 + 4) more bytes,
0.06 ms of an H100 for 4096 x 14336, where the product of 2048 rows takes 0.3 ms.

    4 bits, one group of K:   byte j = u[j] | u[j + group/2] << 4       so a tile of bytes is two operands, and no
                                                                        interleaving is needed
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ..quantize import QuantizedWeight, multiplied

# Number of rows from which a widened copy and cuBLAS are used. Untuned.
MIN_ROWS_TO_WIDEN = 257
_GROUPS = (16, 32, 64, 128)  # possible numbers of inputs of a dot
_FEWEST = {4: 32, 8: 16}  # fewest inputs of a group by bits; with 4 bits, half a group is an operand of 16


class QuantizedLinear(NamedTuple):
    """Weight [N, K] of 8 or 4 bits, laid out for `multiply`."""

    values: Tensor  # [N, K] int8 or uint8, or [N, K/2] uint8
    scales: Tensor  # [G, N] float32 or float16
    offsets: Tensor | None  # [G, N] in the dtype of scales
    bias: Tensor | None  # [N]
    zero: int = 0  # subtracted from values of 4 bits


class Config(NamedTuple):
    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int


def choose_config(num_rows: int, element_size: int) -> Config:
    """Choose the tile. Untuned on a GPU, chosen from the compiler's report (tests/gpu/compile_report.py): no spills.

    32 outputs of 128 inputs in 4 bits are 2 KiB a step, so many steps must be in flight to fill the memory's queue.
    """
    if element_size > 2:
        return Config(16, 32, 4, 1)  # float32 has no tensor cores to fill: this compiles fast
    if num_rows <= 16:
        return Config(16, 32, 4, 6)
    return Config(32, 64, 4, 4) if num_rows <= 32 else Config(64, 64, 4, 4)


def has_layout(weight: QuantizedWeight) -> bool:
    """True if the weight's groups can be those of a dot; 5 and 6 bits are stored in 8."""
    if weight.values.dtype == torch.float8_e4m3fn or weight.is_float4:
        return False
    is_plain = weight.bits == 8 and len(weight.scales) == 1 and weight.offsets is None
    bits = 4 if weight.bits == 4 else 8
    return is_plain or (_dot_group(weight) in _GROUPS and _dot_group(weight) >= _FEWEST[bits])


def _dot_group(weight: QuantizedWeight) -> int:
    """Return the part of a weight's group that one dot takes."""
    return _GROUPS[-1] if weight.group % _GROUPS[-1] == 0 else weight.group


def pack(weight: QuantizedWeight, bias: Tensor | None) -> QuantizedLinear:
    """Pack weight.values [N, K]: 4 bits go two to a byte, one from each half of a group. `order` is dropped."""
    is_plain = weight.bits > 4 and len(weight.scales) == 1 and weight.offsets is None
    times = 1 if is_plain else weight.group // _dot_group(weight)
    scales, offsets = (
        None if lower is None else _level(lower, upper).repeat_interleave(times, dim=0)
        for lower, upper in ((weight.scales, weight.super_scales), (weight.offsets, weight.super_offsets))
    )
    assert scales is not None
    if weight.bits > 4:
        return QuantizedLinear(weight.values.contiguous(), scales, offsets, bias)
    zero = 8 if weight.values.dtype == torch.int8 else 0
    halves = (weight.values.view(torch.uint8) + zero).view(len(weight.values), len(scales), 2, -1)
    values = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1).contiguous()
    return QuantizedLinear(values, scales, offsets, bias, zero)


def _level(lower: Tensor, upper: Tensor | None) -> Tensor:
    return lower if upper is None else multiplied(lower, upper)


@triton.jit
def _multiply_8(x_ptrs, w_ptrs, inside, columns, NUM_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return Σ x · u, [BLOCK_M, BLOCK_N]."""
    BLOCK_K: tl.constexpr = 128
    ks = tl.arange(0, BLOCK_K)
    out = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    for start in range(0, NUM_K, BLOCK_K):
        x_mask, w_mask = inside[:, None], columns[:, None]
        if NUM_K % BLOCK_K:
            x_mask, w_mask = x_mask & (start + ks < NUM_K)[None, :], w_mask & (start + ks < NUM_K)[None, :]
        x = tl.load(x_ptrs + start + ks[None, :], mask=x_mask, other=0.0)
        u = tl.load(w_ptrs + start + ks[None, :], mask=w_mask, other=0)
        out = tl.dot(x, tl.trans(u.to(x.dtype)), out, input_precision="ieee")
    return out


@triton.jit
def _multiply_groups(
    x_ptrs, w_ptrs, scale_ptrs, offset_ptrs, inside, columns, NUM_N: tl.constexpr, NUM_K: tl.constexpr,
    GROUP: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr, HAS_OFFSETS: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return Σ x · w, [BLOCK_M, BLOCK_N]."""
    PART: tl.constexpr = GROUP * BITS // 8  # bytes of a group, and inputs of a dot
    ks = tl.arange(0, PART)
    out = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    for group in range(NUM_K // GROUP):
        x = tl.load(x_ptrs + group * GROUP + ks[None, :], mask=inside[:, None], other=0.0)
        u = tl.load(w_ptrs + group * PART + ks[None, :], mask=columns[:, None], other=0)
        scale = tl.load(scale_ptrs + group * NUM_N, mask=columns, other=0.0).to(tl.float32)
        if HAS_OFFSETS:
            offset = tl.load(offset_ptrs + group * NUM_N, mask=columns, other=0.0).to(tl.float32)
        if BITS == 8:
            dots = tl.dot(x, tl.trans(u.to(x.dtype)), input_precision="ieee")
        else:
            x_high = tl.load(x_ptrs + group * GROUP + PART + ks[None, :], mask=inside[:, None], other=0.0)
            low, high = (u & 15).to(x.dtype), (u >> 4).to(x.dtype)
            if ZERO:
                low, high = (low - ZERO).to(x.dtype), (high - ZERO).to(x.dtype)
            dots = tl.dot(x, tl.trans(low), input_precision="ieee")
            dots = tl.dot(x_high, tl.trans(high), dots, input_precision="ieee")
        out += dots * scale[None, :]
        if HAS_OFFSETS:
            sums = tl.sum(x.to(tl.float32), axis=1)
            if BITS == 4:
                sums += tl.sum(x_high.to(tl.float32), axis=1)
            out += sums[:, None] * offset[None, :]
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _quantized_matmul(
    x_ptr, w_ptr, scales_ptr, offsets_ptr, bias_ptr, out_ptr, num_rows, x_stride, NUM_N: tl.constexpr,
    NUM_K: tl.constexpr, GROUP: tl.constexpr, BITS: tl.constexpr, ZERO: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):  # fmt: skip
    # Programs of equal outputs run concurrently, so that weights which one program reads are in L2 for the others.
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_inside, column_inside = rows < num_rows, columns < NUM_N
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * x_stride
    w_ptrs = w_ptr + columns.to(tl.int64)[:, None] * (NUM_K * BITS // 8)
    if BITS == 8 and GROUP == NUM_K and offsets_ptr is None:
        out = _multiply_8(x_ptrs, w_ptrs, row_inside, column_inside, NUM_K, BLOCK_M, BLOCK_N)
        out *= tl.load(scales_ptr + columns, mask=column_inside, other=0.0).to(tl.float32)[None, :]
    else:
        offset_ptrs = scales_ptr + columns if offsets_ptr is None else offsets_ptr + columns
        out = _multiply_groups(
            x_ptrs, w_ptrs, scales_ptr + columns, offset_ptrs, row_inside, column_inside, NUM_N, NUM_K, GROUP, BITS,
            ZERO, offsets_ptr is not None, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    if bias_ptr is not None:
        out += tl.load(bias_ptr + columns, mask=column_inside, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * NUM_N + columns[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=row_inside[:, None] & column_inside[None, :])


@triton.jit
def _widen_weight(
    w_ptr, scales_ptr, offsets_ptr, out_ptr, NUM_N: tl.constexpr, NUM_K: tl.constexpr, GROUP: tl.constexpr,
    BITS: tl.constexpr, ZERO: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """out [NUM_N, NUM_K] = w: reads bits/8 bytes per weight and writes 2."""
    row, ks = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ks < NUM_K
    group, place = ks // GROUP, ks % GROUP
    if BITS == 8:
        u = tl.load(w_ptr + row * NUM_K + ks, mask=inside, other=0).to(tl.float32)
    else:
        byte = row * (NUM_K // 2) + group * (GROUP // 2) + place % (GROUP // 2)
        code = (tl.load(w_ptr + byte, mask=inside, other=0) >> (place // (GROUP // 2) * 4).to(tl.uint8)) & 15
        u = code.to(tl.float32) - ZERO
    w = u * tl.load(scales_ptr + group * NUM_N + row, mask=inside, other=0.0).to(tl.float32)
    if offsets_ptr is not None:
        w += tl.load(offsets_ptr + group * NUM_N + row, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * NUM_K + ks, w.to(out_ptr.dtype.element_ty), mask=inside)


def _bits(packed: QuantizedLinear, num_inputs: int) -> int:
    return 8 * packed.values.shape[1] // num_inputs


def widen(packed: QuantizedLinear, num_inputs: int, dtype: torch.dtype) -> Tensor:
    """Return the weight [N, K] in `dtype`."""
    num_outputs = len(packed.values)
    out = torch.empty((num_outputs, num_inputs), dtype=dtype, device=packed.values.device)
    _widen_weight[(num_outputs, triton.cdiv(num_inputs, 1024))](
        packed.values, packed.scales, packed.offsets, out, NUM_N=num_outputs, NUM_K=num_inputs,
        GROUP=num_inputs // len(packed.scales), BITS=_bits(packed, num_inputs), ZERO=packed.zero, BLOCK=1024,
    )  # fmt: skip
    return out


def multiply(x: Tensor, packed: QuantizedLinear, *, config: Config | None = None) -> Tensor:
    """x [T, K] with contiguous rows → [T, N] in x's dtype."""
    num_rows, num_inputs = x.shape
    num_outputs = len(packed.values)
    assert _bits(packed, num_inputs) in (4, 8)
    assert x.stride(1) == 1
    if config is None and num_rows >= MIN_ROWS_TO_WIDEN:
        return F.linear(x, widen(packed, num_inputs, x.dtype), packed.bias)
    config = config or choose_config(num_rows, x.element_size())
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    _quantized_matmul[(triton.cdiv(num_rows, config.BLOCK_M), triton.cdiv(num_outputs, config.BLOCK_N))](
        x, packed.values, packed.scales, packed.offsets, packed.bias, out, num_rows, x.stride(0),
        NUM_N=num_outputs,
        NUM_K=num_inputs,
        GROUP=num_inputs // len(packed.scales),
        BITS=_bits(packed, num_inputs),
        ZERO=packed.zero,
        **config._asdict(),
    )  # fmt: skip
    return out


def rows(token_ids: Tensor, packed: QuantizedLinear, *, num_inputs: int, dtype: torch.dtype) -> Tensor:
    """Return rows token_ids [T] of the weight, [T, K] in `dtype`. In torch: `widen` compiles for a number of rows."""
    values = packed.values.index_select(0, token_ids).view(len(token_ids), len(packed.scales), -1)
    if _bits(packed, num_inputs) == 4:
        values = torch.cat((values & 15, values >> 4), dim=2)
    wide = (values.float() - packed.zero) * packed.scales.index_select(1, token_ids).T[:, :, None]
    if packed.offsets is not None:
        wide = wide + packed.offsets.index_select(1, token_ids).T[:, :, None]
    return wide.flatten(1).to(dtype)
