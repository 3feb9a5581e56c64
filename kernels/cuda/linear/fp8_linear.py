# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products in e4m3 (Micikevicius et al. 2022): y = (x₈ w₈ᵀ) · x's scale · w's scale, a scale for each token and output.

x is rounded token by token, by one formula for every way of multiplying, so that a token's result does not depend on
the number of rows. Few rows go through few_rows.py. More rows are multiplied in e4m3, twice as fast as in 16 bits, if
the GPU can: by byte_linear.py up to MAX_ROWS, then by cuBLAS; else x and w are widened, and cuBLAS multiplies in 16
bits.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import Tensor

from .. import device_info as settings
from ..dependent import wait_for_previous
from ..device_info import dependent_launch, device_info
from ..rope_and_cache import to_e4m3
from . import byte_linear, exact_linear, few_rows

# With more rows cuBLAS multiplies. H200, 2026-11-27, Llama-3.1-8B's tokens/s at 32 rows: 5,278 by cuBLAS, 6,320; at 64
# 9,223 by cuBLAS, 8,232.
MAX_ROWS = 32


class Fp8Linear(NamedTuple):
    """Weight [N, K] in e4m3."""

    values: Tensor  # [N, K] e4m3
    scales: Tensor  # [N] float32
    bias: Tensor | None  # [N]


@triton.jit
def _round_rows(
    x_ptr, y_ptr, scales_ptr, x_stride, NUM_K: tl.constexpr, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """Write y [rows, NUM_K], bytes of x / scale, with the scale that turns a row's largest value into 448 or 127."""
    wait_for_previous(DEPENDENT)
    row, ks = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = ks < NUM_K
    x = tl.load(x_ptr + row * x_stride + ks, mask=inside, other=0.0).to(tl.float32)
    # A row of zeros stays zero. The sum is 0, or NaN if x is not finite, which a maximum might hide.
    IS_INT8: tl.constexpr = y_ptr.dtype.element_ty == tl.int8
    scale = tl.maximum(tl.max(tl.abs(x), axis=0) * (1.0 / (127.0 if IS_INT8 else 448.0)), 1e-30) + tl.sum(
        x * 0.0, axis=0
    )
    tl.store(scales_ptr + row, scale)
    # An approximate quotient would round a tie away, where the CPU and torch round to even.
    y = tl.div_rn(x, scale)
    y = ((y + 12582912.0) - 12582912.0).to(tl.int8) if IS_INT8 else to_e4m3(y)
    tl.store(y_ptr + row * NUM_K + ks, y, mask=inside)


def can_round(weight: Tensor) -> bool:
    """True if cuBLAS takes this shape [N, K] in e4m3."""
    return weight.shape[0] % 16 == 0 and weight.shape[1] % 16 == 0


def pack(weight: Tensor, bias: Tensor | None) -> Fp8Linear:
    """Round a weight [N, K] of 16 or 32 bits row by row."""
    values, scales = round_rows(weight)
    return Fp8Linear(values, scales, bias)


def round_rows(x: Tensor, *, dtype: torch.dtype = torch.float8_e4m3fn) -> tuple[Tensor, Tensor]:
    """Round x [T, K], contiguous rows → (x / scale [T, K] in `dtype`, to nearest, ties to even; scales [T] float32).

    `dtype`: float8_e4m3fn or int8.
    """
    num_rows, num_inputs = x.shape
    assert x.stride(1) == 1
    stored = torch.int8 if dtype == torch.int8 else torch.uint8
    values = torch.empty((num_rows, num_inputs), dtype=stored, device=x.device)
    scales = torch.empty(num_rows, dtype=torch.float32, device=x.device)
    block = triton.next_power_of_2(num_inputs)
    _round_rows[(num_rows,)](
        x, values, scales, x.stride(0), NUM_K=num_inputs, BLOCK=block, num_warps=min(max(block // 512, 1), 16),
        **dependent_launch(device_info(x.device)),
    )  # fmt: skip
    return values.view(dtype), scales


def multiply(x: Tensor, packed: Fp8Linear, *, is_gated: bool = False) -> Tensor:
    """Multiply x [T, K], contiguous rows → [T, N] in x's dtype; gated (few rows only): silu(gate) · up [T, N / 2]."""
    rounded, x_scales = round_rows(x)
    as_bytes = rounded.view(torch.uint8)
    weight = few_rows.Weight(packed.values.view(torch.uint8), packed.scales, packed.bias)
    if few_rows.serves(x) and not settings.EXACT.is_on:
        return few_rows.multiply(as_bytes, weight, dtype=x.dtype, x_scales=x_scales, is_gated=is_gated)
    assert not is_gated
    if device_info(x.device).has_fp8_matmul:
        if settings.EXACT.is_on:  # one tile for any number of rows, K in one part
            config = byte_linear.Config(64, 64, 128, 4, 4)
            return byte_linear.multiply(as_bytes, x_scales, weight, dtype=x.dtype, config=config, num_splits=1)
        if len(x) <= MAX_ROWS:
            return byte_linear.multiply(as_bytes, x_scales, weight, dtype=x.dtype)
        out = _scaled_matmul(rounded, x_scales, packed, x.dtype)
    else:
        wide, weights = ((each.float() * s[:, None]).to(x.dtype) for each, s in ((rounded, x_scales), packed[:2]))
        if settings.EXACT.is_on:
            return exact_linear.multiply(wide, weights, packed.bias)
        out = F.linear(wide, weights)
    return out if packed.bias is None else out + packed.bias


def _scaled_matmul(x: Tensor, x_scales: Tensor, packed: Fp8Linear, dtype: torch.dtype) -> Tensor:
    """Multiply with scales per row for bfloat16 results, the only ones that support them; else with scales of 1."""
    if dtype == torch.bfloat16:
        return torch._scaled_mm(
            x, packed.values.T, scale_a=x_scales[:, None], scale_b=packed.scales[None], out_dtype=dtype
        )
    one = torch.ones((), dtype=torch.float32, device=x.device)
    wide = torch._scaled_mm(x, packed.values.T, scale_a=one, scale_b=one, out_dtype=torch.float32)
    return (wide * x_scales[:, None] * packed.scales).to(dtype)
