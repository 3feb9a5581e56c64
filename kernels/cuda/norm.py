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
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .device_info import dependent_launch, device_info


@triton.jit
def _normalized(x, weight_ptr, columns, inside, num_columns, eps):
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    return x * tl.math.rsqrt(tl.sum(x * x, axis=0) / num_columns + eps) * weight


@triton.jit
def _rms_norm(
    x_ptr, weight_ptr, y_ptr, x_stride, y_stride, num_columns, eps, BLOCK: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    y = _normalized(x, weight_ptr, columns, inside, num_columns, eps)
    tl.store(y_ptr + row * y_stride + columns, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _add_rms_norm(
    x_ptr, residual_ptr, weight_ptr, y_ptr, x_stride, residual_stride, y_stride, num_columns, eps, BLOCK: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    residual_ptrs = residual_ptr + row * residual_stride + columns
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    # Rounded before the norm, which must see the value that the next layer's addition will see.
    total = (x + tl.load(residual_ptrs, mask=inside, other=0.0).to(tl.float32)).to(residual_ptr.dtype.element_ty)
    y = _normalized(total.to(tl.float32), weight_ptr, columns, inside, num_columns, eps)
    tl.store(residual_ptrs, total, mask=inside)
    tl.store(y_ptr + row * y_stride + columns, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _layer_normalized(x, weight_ptr, bias_ptr, columns, inside, num_columns, eps, HAS_BIAS: tl.constexpr):
    weight = tl.load(weight_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, x - tl.sum(x, axis=0) / num_columns, 0.0)
    y = centred * tl.math.rsqrt(tl.sum(centred * centred, axis=0) / num_columns + eps) * weight
    if HAS_BIAS:
        y += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)
    return y


@triton.jit
def _layer_norm(
    x_ptr, weight_ptr, bias_ptr, y_ptr, x_stride, y_stride, num_columns, eps, HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    y = _layer_normalized(x, weight_ptr, bias_ptr, columns, inside, num_columns, eps, HAS_BIAS)
    tl.store(y_ptr + row * y_stride + columns, y.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _add_layer_norm(
    x_ptr, residual_ptr, weight_ptr, bias_ptr, y_ptr, x_stride, residual_stride, y_stride, num_columns, eps,
    HAS_BIAS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < num_columns
    residual_ptrs = residual_ptr + row * residual_stride + columns
    x = tl.load(x_ptr + row * x_stride + columns, mask=inside, other=0.0).to(tl.float32)
    total = (x + tl.load(residual_ptrs, mask=inside, other=0.0).to(tl.float32)).to(residual_ptr.dtype.element_ty)
    y = _layer_normalized(
        total.to(tl.float32), weight_ptr, bias_ptr, columns, inside, num_columns, eps, HAS_BIAS
    )  # fmt: skip
    tl.store(residual_ptrs, total, mask=inside)
    tl.store(y_ptr + row * y_stride + columns, y.to(y_ptr.dtype.element_ty), mask=inside)


def _launch_options(num_columns: int) -> dict[str, int]:
    """Return the padded row and warps for 16 elements a thread, so that a thread has two 16-byte loads. Untuned."""
    block = triton.next_power_of_2(num_columns)
    return {"BLOCK": block, "num_warps": min(max(block // 512, 1), 16)}


def _check(x: Tensor, weight: Tensor) -> None:
    assert x.ndim == 2
    assert x.stride(1) == 1
    assert weight.shape == x.shape[1:]
    assert weight.is_contiguous()


def _check_residual(x: Tensor, residual: Tensor) -> None:
    assert residual.shape == x.shape
    assert residual.dtype == x.dtype
    assert residual.stride(1) == 1


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """x [T, H] with contiguous rows, weight [H] → [T, H]."""
    _check(x, weight)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows, num_columns = x.shape
    _rms_norm[(num_rows,)](
        x, weight, y, x.stride(0), y.stride(0), num_columns, eps, **_launch_options(num_columns),
        **dependent_launch(device_info(x.device)),
    )  # fmt: skip
    return y


def add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> tuple[Tensor, Tensor]:
    """x, residual [T, H] with contiguous rows, weight [H] → (normed [T, H], `residual` itself, overwritten)."""
    _check(x, weight)
    _check_residual(x, residual)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows, num_columns = x.shape
    _add_rms_norm[(num_rows,)](
        x, residual, weight, y, x.stride(0), residual.stride(0), y.stride(0), num_columns, eps,
        **_launch_options(num_columns), **dependent_launch(device_info(x.device)),
    )  # fmt: skip
    return y, residual


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float) -> Tensor:
    """x [T, H] with contiguous rows, weight and bias [H] → [T, H]."""
    _check(x, weight)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows, num_columns = x.shape
    _layer_norm[(num_rows,)](
        x, weight, bias, y, x.stride(0), y.stride(0), num_columns, eps, HAS_BIAS=bias is not None,
        **_launch_options(num_columns),
    )  # fmt: skip
    return y


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor | None, *, eps: float
) -> tuple[Tensor, Tensor]:
    """x, residual [T, H] with contiguous rows, weight and bias [H] → (normed [T, H], `residual`, overwritten)."""
    _check(x, weight)
    _check_residual(x, residual)
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    num_rows, num_columns = x.shape
    _add_layer_norm[(num_rows,)](
        x, residual, weight, bias, y, x.stride(0), residual.stride(0), y.stride(0), num_columns, eps,
        HAS_BIAS=bias is not None, **_launch_options(num_columns),
    )  # fmt: skip
    return y, residual
