# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products with weights of 8 or 4 bits (quantize.py): y = x wᵀ, w = scale · u + offset widened on its way to the dot.

Few rows: one program takes BLOCK_M rows and BLOCK_N outputs. The dot is with u alone, which x's dtype holds exactly;
scale and offset come after it, per output (8 bits) or per output and group (4 bits: Σ x · w = scale · Σ x · u + offset
· Σ x). N·K·bits/8 bytes of weights (and 8·N·K/group of scales and offsets at 4 bits) are read for 2·M·N·K operations:
at 4 bits 4·M per byte, so up to some 64 rows bound by memory.
Many rows: the weight is widened once into a buffer and cuBLAS multiplies: N·K·(bits/8 + 4) more bytes, 0.06 ms of an
H100 for 4096 x 14336, where the product of 2048 rows takes 0.3 ms.

    4 bits, one group of K:   byte j = u[j] | u[j + group/2] << 4       so a tile of bytes is two operands, not one
                                                                        operand to be interleaved
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from ..quantize import QuantizedWeight

# Rows from which a widened copy and cuBLAS are taken. Untuned.
MIN_ROWS_TO_WIDEN = 257


class QuantizedLinear(NamedTuple):
    """A weight [N, K] of 8 or 4 bits, laid out for `multiply`."""

    values: Tensor  # [N, K] int8, or [N, K/2] uint8
    scales: Tensor  # [G, N] float32
    offsets: Tensor | None  # [G, N] float32, with 4 bits
    bias: Tensor | None  # [N]


class Config(NamedTuple):
    BLOCK_M: int
    BLOCK_N: int
    num_warps: int
    num_stages: int


def choose_config(num_rows: int, element_size: int) -> Config:
    """Untuned on a GPU. Chosen from the compiler's own report (tests/gpu/compile_report.py): nothing spills.

    32 outputs of 128 inputs in 4 bits are 2 KiB a step, so it takes many steps in flight to fill the memory's queue.
    """
    if element_size > 2:
        return Config(16, 32, 4, 1)  # float32 has no tensor cores to fill: what compiles fast
    if num_rows <= 16:
        return Config(16, 32, 4, 6)
    return Config(32, 64, 4, 4) if num_rows <= 32 else Config(64, 64, 4, 4)


def pack(weight: QuantizedWeight, bias: Tensor | None) -> QuantizedLinear:
    """weight.values [N, K] → two to a byte with 4 bits, the halves of a group side by side."""
    if weight.bits == 8:
        return QuantizedLinear(weight.values.contiguous(), weight.scales, None, bias)
    halves = weight.values.view(len(weight.values), len(weight.scales), 2, -1)
    values = (halves[:, :, 0] | halves[:, :, 1] << 4).flatten(1).contiguous()
    return QuantizedLinear(values, weight.scales, weight.offsets, bias)


@triton.jit
def _multiply_8(x_ptrs, w_ptrs, inside, columns, NUM_K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """[BLOCK_M, BLOCK_N] of Σ x · u."""
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
def _multiply_4(
    x_ptrs, w_ptrs, scale_ptrs, offset_ptrs, inside, columns, NUM_N: tl.constexpr, NUM_K: tl.constexpr,
    GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """[BLOCK_M, BLOCK_N] of Σ x · w."""
    HALF: tl.constexpr = GROUP // 2
    ks = tl.arange(0, HALF)
    out = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    for group in range(NUM_K // GROUP):
        x_low = tl.load(x_ptrs + group * GROUP + ks[None, :], mask=inside[:, None], other=0.0)
        x_high = tl.load(x_ptrs + group * GROUP + HALF + ks[None, :], mask=inside[:, None], other=0.0)
        u = tl.load(w_ptrs + group * HALF + ks[None, :], mask=columns[:, None], other=0)
        scale = tl.load(scale_ptrs + group * NUM_N, mask=columns, other=0.0)
        offset = tl.load(offset_ptrs + group * NUM_N, mask=columns, other=0.0)
        dots = tl.dot(x_low, tl.trans((u & 15).to(x_low.dtype)), input_precision="ieee")
        dots = tl.dot(x_high, tl.trans((u >> 4).to(x_low.dtype)), dots, input_precision="ieee")
        sums = tl.sum(x_low.to(tl.float32), axis=1) + tl.sum(x_high.to(tl.float32), axis=1)
        out += dots * scale[None, :] + sums[:, None] * offset[None, :]
    return out


@triton.jit(do_not_specialize=["num_rows"])
def _quantized_matmul(
    x_ptr, w_ptr, scales_ptr, offsets_ptr, bias_ptr, out_ptr, num_rows, x_stride, NUM_N: tl.constexpr,
    NUM_K: tl.constexpr, GROUP: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    # Programs of the same outputs run side by side, so that what one reads of the weights the others find in L2.
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_inside, column_inside = rows < num_rows, columns < NUM_N
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * x_stride
    if offsets_ptr is None:
        w_ptrs = w_ptr + columns.to(tl.int64)[:, None] * NUM_K
        out = _multiply_8(x_ptrs, w_ptrs, row_inside, column_inside, NUM_K, BLOCK_M, BLOCK_N)
        out *= tl.load(scales_ptr + columns, mask=column_inside, other=0.0)[None, :]
    else:
        w_ptrs = w_ptr + columns.to(tl.int64)[:, None] * (NUM_K // 2)
        out = _multiply_4(
            x_ptrs, w_ptrs, scales_ptr + columns, offsets_ptr + columns, row_inside, column_inside, NUM_N, NUM_K,
            GROUP, BLOCK_M, BLOCK_N,
        )  # fmt: skip
    if bias_ptr is not None:
        out += tl.load(bias_ptr + columns, mask=column_inside, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * NUM_N + columns[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=row_inside[:, None] & column_inside[None, :])


@triton.jit
def _widen_weight(
    w_ptr, scales_ptr, offsets_ptr, out_ptr, NUM_N: tl.constexpr, NUM_K: tl.constexpr, GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """out [NUM_N, NUM_K] = scale · u + offset: per weight bits/8 bytes read, 2 written."""
    row, ks = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = ks < NUM_K
    if offsets_ptr is None:
        u = tl.load(w_ptr + row * NUM_K + ks, mask=inside, other=0).to(tl.float32)
        w = u * tl.load(scales_ptr + row)
    else:
        group, place = ks // GROUP, ks % GROUP
        byte = row * (NUM_K // 2) + group * (GROUP // 2) + place % (GROUP // 2)
        u = (tl.load(w_ptr + byte, mask=inside, other=0) >> (place // (GROUP // 2) * 4).to(tl.uint8)) & 15
        scale = tl.load(scales_ptr + group * NUM_N + row, mask=inside, other=0.0)
        w = u.to(tl.float32) * scale + tl.load(offsets_ptr + group * NUM_N + row, mask=inside, other=0.0)
    tl.store(out_ptr + row * NUM_K + ks, w.to(out_ptr.dtype.element_ty), mask=inside)


def widen(packed: QuantizedLinear, num_inputs: int, dtype: torch.dtype) -> Tensor:
    """The weight [N, K] in `dtype`."""
    num_outputs = len(packed.values)
    out = torch.empty((num_outputs, num_inputs), dtype=dtype, device=packed.values.device)
    _widen_weight[(num_outputs, triton.cdiv(num_inputs, 1024))](
        packed.values, packed.scales, packed.offsets, out, NUM_N=num_outputs, NUM_K=num_inputs,
        GROUP=num_inputs // len(packed.scales), BLOCK=1024,
    )  # fmt: skip
    return out


def multiply(x: Tensor, packed: QuantizedLinear, *, config: Config | None = None) -> Tensor:
    """x [T, K] with contiguous rows → [T, N] in x's dtype."""
    num_rows, num_inputs = x.shape
    num_outputs = len(packed.values)
    assert packed.values.shape[1] == (num_inputs if packed.offsets is None else num_inputs // 2)
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
        **config._asdict(),
    )  # fmt: skip
    return out
