# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Gates of recurrent layers and of attention, alone and with the norm of a recurrence's output.

y = rms_norm(x) · silu(gate) or · sigmoid(gate), rms_norm(x · silu(gate)), x · silu(gate), or x · sigmoid(gate), all
in float32 and rounded once. An element is two reads and one write: bound by memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .. import recurrence as reference

BLOCK = 1024


@triton.jit
def _gated_rms_norm(
    x_ptr, gate_ptr, weight_ptr, y_ptr, x_stride, gate_stride, y_stride, group_size, num_weights, eps,
    NORM_BEFORE_GATE: tl.constexpr, IS_SIGMOID: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * group_size
    columns = tl.arange(0, BLOCK)
    inside = columns < group_size
    x = tl.load(x_ptr + row * x_stride + first + columns, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_stride + first + columns, mask=inside, other=0.0).to(tl.float32)
    gate = (1.0 if IS_SIGMOID else gate) / (1.0 + tl.exp(-gate))
    if not NORM_BEFORE_GATE:
        x *= gate
    weight = tl.load(weight_ptr + first % num_weights + columns, mask=inside, other=0.0).to(tl.float32)
    y = x * tl.math.rsqrt(tl.sum(x * x, axis=0) / group_size + eps) * weight
    if NORM_BEFORE_GATE:
        y *= gate
    tl.store(y_ptr + row * y_stride + first + columns, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _gate_mul(
    x_ptr, gate_ptr, y_ptr, x_stride, gate_stride, y_stride, num_columns, IS_SILU: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < num_columns
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    gate = tl.load(gate_ptr + row * gate_stride + columns, mask=inside, other=0.0).to(tl.float32)
    y = x / (1.0 + tl.exp(-gate))
    if IS_SILU:
        y *= gate
    tl.store(y_ptr + row * y_stride + columns, y.to(y_ptr.dtype.element_ty), mask=inside)


def gated_rms_norm(
    x: Tensor, gate: Tensor, weight: Tensor, *, eps: float, group_size: int, norm_before_gate: bool,
    is_sigmoid: bool = False,
) -> Tensor:  # fmt: skip
    """Like ops.gated_rms_norm; x's rows may lie apart, too."""
    assert x.shape == gate.shape
    assert x.stride(1) == gate.stride(1) == weight.stride(0) == 1
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(group_size)
    _gated_rms_norm[(len(x), x.shape[1] // group_size)](
        x, gate, weight, y, x.stride(0), gate.stride(0), y.stride(0), group_size, len(weight), eps,
        NORM_BEFORE_GATE=norm_before_gate, IS_SIGMOID=is_sigmoid, BLOCK=block, num_warps=min(max(block // 512, 1), 16),
    )  # fmt: skip
    return y


def gate_mul(x: Tensor, gate: Tensor, kind: str) -> Tensor:
    """Like ops.gate_mul."""
    if kind == "gelu_tanh":
        return reference.gate_mul(x, gate, kind)
    assert x.shape == gate.shape
    flat_x, flat_gate = x.flatten(1), gate.flatten(1)  # views if a row is contiguous
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    grid = (len(x), triton.cdiv(flat_x.shape[1], BLOCK))
    _gate_mul[grid](
        flat_x, flat_gate, y, flat_x.stride(0), flat_gate.stride(0), y.stride(0), flat_x.shape[1],
        IS_SILU=kind == "silu", BLOCK=BLOCK,
    )  # fmt: skip
    return y
