# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""RMSNorm and LayerNorm, alone and after the residual addition.

y = x / sqrt(mean(x²) + eps) · weight (Zhang & Sennrich 2019);
y = (x - mean(x)) / sqrt(var(x) + eps) · weight + bias (Ba et al. 2016).
One program holds one row in registers: one pass, float32 inside. For an element of 2 bytes a norm reads x and writes y,
4 bytes; with the addition it reads x and residual and writes residual' and y, 8 bytes, where two kernels would move 10.
At most 8 operations per element: bound by memory.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from .dependent import wait_for_previous
from .device_info import dependent_launch, device_info


@triton.jit
def _load_row(x_ptr, residual_ptr, row, columns, inside, x_stride, residual_stride):
    """Load a row of x in float32, rounded with the residual where there is one: the next addition sees that value."""
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        residual = tl.load(residual_ptr + row * residual_stride + columns, mask=inside, other=0.0).to(tl.float32)
        x = (x + residual).to(residual_ptr.dtype.element_ty).to(tl.float32)
    return x


@triton.jit
def _store_row(y, total, y_ptr, residual_ptr, row, columns, inside, y_stride, residual_stride):
    if residual_ptr is not None:
        tl.store(
            residual_ptr + row * residual_stride + columns, total.to(residual_ptr.dtype.element_ty), mask=inside
        )  # fmt: skip
    tl.store(y_ptr + row * y_stride + columns, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _rms_norm(
    x_ptr, residual_ptr, weight_ptr, y_ptr, x_stride, residual_stride, y_stride, num_columns, eps, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(DEPENDENT)
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = columns < num_columns
    x = _load_row(x_ptr, residual_ptr, row, columns, inside, x_stride, residual_stride)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    y = x * tl.math.rsqrt(tl.sum(x * x, axis=0) / num_columns + eps) * weight
    _store_row(y, x, y_ptr, residual_ptr, row, columns, inside, y_stride, residual_stride)


@triton.jit
def _layer_norm(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, y_ptr, x_stride, residual_stride, y_stride, num_columns, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row, columns = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = columns < num_columns
    x = _load_row(x_ptr, residual_ptr, row, columns, inside, x_stride, residual_stride)
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, x - tl.sum(x, axis=0) / num_columns, 0.0)
    y = centred * tl.math.rsqrt(tl.sum(centred * centred, axis=0) / num_columns + eps) * weight
    if bias_ptr is not None:
        y += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    _store_row(y, x, y_ptr, residual_ptr, row, columns, inside, y_stride, residual_stride)


def _launch(kernel, x: Tensor, residual: Tensor | None, *weights: Tensor | None, eps: float, **options: bool) -> Tensor:
    """Launch with 16 elements a thread, so that a thread has two 16-byte loads. Untuned."""
    assert x.ndim == 2
    assert x.stride(1) == 1
    assert all(part is None or (part.shape == x.shape[1:] and part.is_contiguous()) for part in weights)
    if residual is not None:
        assert residual.shape == x.shape
        assert residual.dtype == x.dtype
        assert residual.stride(1) == 1
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows, num_columns = x.shape
    block = triton.next_power_of_2(num_columns)
    kernel[(num_rows,)](
        x, residual, *weights, y, x.stride(0), 0 if residual is None else residual.stride(0), y.stride(0), num_columns,
        eps, BLOCK=block, num_warps=min(max(block // 512, 1), 16), **options,
    )  # fmt: skip
    return y


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x [T, H] with contiguous rows, weight [H] → [T, H]."""
    return _launch(_rms_norm, x, None, weight, eps=eps, **dependent_launch(device_info(x.device)))


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, H] with contiguous rows, weight [H] → (normed [T, H], `residual` itself, overwritten)."""
    return _launch(_rms_norm, x, residual, weight, eps=eps, **dependent_launch(device_info(x.device))), residual


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float) -> Tensor:
    """x [T, H] with contiguous rows, weight and bias [H] → [T, H]."""
    return _launch(_layer_norm, x, None, weight, bias, eps=eps)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor]:
    """x, residual [T, H] with contiguous rows, weight and bias [H] → (normed [T, H], `residual`, overwritten)."""
    return _launch(_layer_norm, x, residual, weight, bias, eps=eps), residual
