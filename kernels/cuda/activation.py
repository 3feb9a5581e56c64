# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Activations, alone and gating: y = f(x), or f(gate) · up.

silu(x) = x / (1 + exp(-x)); gelu(x) = x · (1 + erf(x / sqrt(2))) / 2; gelu_tanh(x) = x / (1 + exp(-2u)) with
u = sqrt(2/π) · (x + 0.044715·x³), which is x · (1 + tanh(u)) / 2; softcap(x) = cap · tanh(x / cap).
An output element takes one or two reads, one write and at most 20 operations: bound by memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .dependent import wait_for_previous
from .device_info import dependent_launch, device_info

# 1024 elements over 4 warps are 8 a thread: one 16-byte load each of gate and up. Untuned.
BLOCK = 1024
NUM_WARPS = 4


@triton.jit
def tanh(x):
    """tanh(x) = 1 - 2 / (1 + exp(2x)): absolute error 1e-7; an overflow gives the right limit."""
    return 1.0 - 2.0 / (1.0 + tl.exp(2.0 * x))


@triton.jit
def _activated(x, cap, KIND: tl.constexpr):
    if KIND == "silu":
        y = x / (1.0 + tl.exp(-x))
    elif KIND == "gelu_tanh":
        y = x / (1.0 + tl.exp(-1.5957691216057308 * (x + 0.044715 * x * x * x)))
    elif KIND == "gelu":
        y = 0.5 * x * (1.0 + tl.math.erf(x * 0.7071067811865476))
    elif KIND == "relu":
        y = tl.maximum(x, 0.0)
    elif KIND == "relu_squared":
        y = tl.maximum(x, 0.0) * tl.maximum(x, 0.0)
    else:
        tl.static_assert(KIND == "softcap")
        y = cap * tanh(x / cap)
    return y


@triton.jit
def _activate(x_ptr, y_ptr, x_stride, y_stride, num_columns, cap, KIND: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < num_columns
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    tl.store(y_ptr + row * y_stride + columns, _activated(x, cap, KIND).to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _activate_mul(
    gate_up_ptr, y_ptr, gate_up_stride, y_stride, num_columns, KIND: tl.constexpr, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(DEPENDENT)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < num_columns
    gate_ptrs = gate_up_ptr + row * gate_up_stride + columns
    gate = tl.load(gate_ptrs, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_ptrs + num_columns, mask=inside, other=0.0).to(tl.float32)
    y = _activated(gate, 1.0, KIND) * up
    tl.store(y_ptr + row * y_stride + columns, y.to(y_ptr.dtype.element_ty), mask=inside)


def _gated(gate_up: Tensor, kind: str) -> Tensor:
    num_rows, width = gate_up.shape
    assert width % 2 == 0
    assert gate_up.stride(1) == 1
    num_columns = width // 2
    y = torch.empty((num_rows, num_columns), dtype=gate_up.dtype, device=gate_up.device)
    grid = (num_rows, triton.cdiv(num_columns, BLOCK))
    _activate_mul[grid](
        gate_up, y, gate_up.stride(0), y.stride(0), num_columns, KIND=kind, BLOCK=BLOCK, num_warps=NUM_WARPS,
        **dependent_launch(device_info(gate_up.device)),
    )  # fmt: skip
    return y


def silu_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2·I] with contiguous rows → [T, I]."""
    return _gated(gate_up, "silu")


def gelu_tanh_mul(gate_up: Tensor) -> Tensor:
    """gate_up [T, 2·I] with contiguous rows → [T, I]."""
    return _gated(gate_up, "gelu_tanh")


def activation(x: Tensor, kind: str) -> Tensor:
    """x [T, I] with contiguous rows → [T, I]."""
    return x.tanh() if kind == "tanh" else _apply(x, kind)


def softcap(x: Tensor, cap: float) -> Tensor:
    """x [S, V] with contiguous rows → [S, V]."""
    return _apply(x, "softcap", cap)


def _apply(x: Tensor, kind: str, cap: float = 1.0) -> Tensor:
    assert x.stride(1) == 1
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows, num_columns = x.shape
    grid = (num_rows, triton.cdiv(num_columns, BLOCK))
    _activate[grid](
        x, y, x.stride(0), y.stride(0), num_columns, cap, KIND=kind, BLOCK=BLOCK, num_warps=NUM_WARPS
    )  # fmt: skip
    return y
