# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of a few rows: y = x wᵀ, or silu(x gateᵀ) · (x upᵀ), with weights of 16 bits or of e4m3 (fp8_linear.py).

N·K weights are read for 2·M·N·K operations, M operations per byte in 16 bits: bound by memory. cuBLAS is expected to
reach 60 to 85 % of its bandwidth at one row. One program takes BLOCK_N outputs of all rows, which are padded to the 16
that a tensor core needs; its steps in flight hold some 32 KiB of weights, and two or three programs share a
multiprocessor. If too few outputs would leave multiprocessors idle, K is split: partial sums are written in float32,
and a second kernel adds them in the order of K. So a row's product depends on neither the other rows nor the timing.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..attention_common import widen
from ..dependent import wait_for_previous
from ..device_info import DeviceInfo, dependent_launch, device_info

# With more rows cuBLAS fills its tiles as well. 0: cuBLAS always multiplies.
MAX_ROWS = 8
# K is split until a multiprocessor has this many programs, as long as a program reads MIN_SPLIT_BYTES a row. On an
# H200, 14336 -> 4096 in 16 bits: 36 us with 2 of them, 34 with 4, 36 with 8.
PROGRAMS_PER_MULTIPROCESSOR = 4
MIN_SPLIT_BYTES = 1024
_BLOCK_M = tl.constexpr(16)


class Config(NamedTuple):
    BLOCK_N: int  # outputs
    BLOCK_K: int
    num_warps: int
    num_stages: int


def choose_config(element_size: int, gpu: DeviceInfo) -> Config:
    """Choose the tile. A step is 8 KiB of weights, 16 with a gate, and 4 of padded rows; the best of 20 on an H200."""
    if element_size > 2:
        return Config(16, 64, 4, 1)  # float32 has no tensor cores to fill: this compiles fast
    # A tensor core takes 8 outputs of a warp: with fewer than 32, two warps would convert the same weights.
    return Config(32, 256 // element_size, 4, 4 if gpu.shared_memory < 128 * 1024 else 5)


def choose_num_splits(num_outputs: int, row_bytes: int, config: Config, gpu: DeviceInfo) -> int:
    """Return the number of parts of K that are summed concurrently."""
    num_programs = -(-num_outputs // config.BLOCK_N)
    wanted = PROGRAMS_PER_MULTIPROCESSOR * gpu.num_multiprocessors // num_programs
    return max(min(wanted, row_bytes // MIN_SPLIT_BYTES, 8), 1)


@triton.jit
def finish(out, w_scales_ptr, bias_ptr, x_scale, columns, inside):
    """Apply the scales of e4m3 or int8 and the bias, if there are any, to out [rows, columns]."""
    if w_scales_ptr is not None:
        out *= x_scale[:, None] * tl.load(w_scales_ptr + columns, mask=inside, other=0.0)[None, :]
    if bias_ptr is not None:
        out += tl.load(bias_ptr + columns, mask=inside, other=0.0).to(tl.float32)[None, :]
    return out


@triton.jit
def _gated(gate, up):
    return gate / (1.0 + tl.exp(-gate)) * up


@triton.jit(do_not_specialize=["num_rows"])
def _few_rows(
    x_ptr, x_scales_ptr, w_ptr, w_scales_ptr, bias_ptr, out_ptr, num_rows, x_stride, NUM_N: tl.constexpr,
    NUM_K: tl.constexpr, SPLIT_K: tl.constexpr, IS_GATED: tl.constexpr, IS_SPLIT: tl.constexpr, FP8: tl.constexpr,
    DEPENDENT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write out [rows, NUM_N], if split bare sums [splits, 1 or 2, rows, NUM_N]. w [NUM_N, NUM_K], or gate, then up."""
    wait_for_previous(DEPENDENT)
    split = tl.program_id(1)
    rows, ks = tl.arange(0, _BLOCK_M), tl.arange(0, BLOCK_K)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    row_inside, column_inside = rows < num_rows, columns < NUM_N
    x_ptrs = x_ptr + rows[:, None] * x_stride + ks[None, :]
    w_ptrs = w_ptr + columns.to(tl.int64)[:, None] * NUM_K + ks[None, :]
    out = tl.full([_BLOCK_M, BLOCK_N], 0.0, tl.float32)
    up = out
    for start in range(split * SPLIT_K, tl.minimum(split * SPLIT_K + SPLIT_K, NUM_K), BLOCK_K):
        x_mask, w_mask = row_inside[:, None], column_inside[:, None]
        if NUM_K % BLOCK_K:
            x_mask, w_mask = x_mask & (start + ks < NUM_K)[None, :], w_mask & (start + ks < NUM_K)[None, :]
        x = widen(tl.load(x_ptrs + start, mask=x_mask, other=0), FP8)
        w = widen(tl.load(w_ptrs + start, mask=w_mask, other=0), FP8)
        out = tl.dot(x, tl.trans(w), out, input_precision="ieee")
        if IS_GATED:
            w = widen(tl.load(w_ptrs + NUM_N * NUM_K + start, mask=w_mask, other=0), FP8)
            up = tl.dot(x, tl.trans(w), up, input_precision="ieee")
    mask = row_inside[:, None] & column_inside[None, :]
    out_ptrs = out_ptr + rows[:, None] * NUM_N + columns[None, :]
    if IS_SPLIT:
        out_ptrs += split * (2 if IS_GATED else 1) * num_rows * NUM_N
        tl.store(out_ptrs, out, mask=mask)
        if IS_GATED:
            tl.store(out_ptrs + num_rows * NUM_N, up, mask=mask)
    else:
        x_scale = tl.load(x_scales_ptr + rows, mask=row_inside, other=0.0) if FP8 else 0.0
        out = finish(out, w_scales_ptr, bias_ptr, x_scale, columns, column_inside)
        if IS_GATED:
            up = finish(up, w_scales_ptr, bias_ptr, x_scale, NUM_N + columns, column_inside)
            out = _gated(out, up)
        tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["num_splits"])
def _add_splits(
    partial_ptr, x_scales_ptr, w_scales_ptr, bias_ptr, out_ptr, num_splits, NUM_N: tl.constexpr,
    IS_GATED: tl.constexpr, DEPENDENT: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Write out [rows, NUM_N], adding the sums one split after the other."""
    wait_for_previous(DEPENDENT)
    row, num_rows = tl.program_id(1), tl.num_programs(1)
    columns = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = columns < NUM_N
    out = tl.full([1, BLOCK_N], 0, partial_ptr.dtype.element_ty)
    up = out
    partial_ptrs = partial_ptr + row * NUM_N + columns[None, :]
    for _ in range(num_splits):
        out += tl.load(partial_ptrs, mask=inside[None, :], other=0.0)
        partial_ptrs += num_rows * NUM_N
        if IS_GATED:
            up += tl.load(partial_ptrs, mask=inside[None, :], other=0.0)
            partial_ptrs += num_rows * NUM_N
    x_scale = tl.load(x_scales_ptr + row + tl.arange(0, 1)) if x_scales_ptr is not None else 0.0
    out = finish(out.to(tl.float32), w_scales_ptr, bias_ptr, x_scale, columns, inside)
    if IS_GATED:
        up = finish(up, w_scales_ptr, bias_ptr, x_scale, NUM_N + columns, inside)
        out = _gated(out, up)
    tl.store(out_ptr + row * NUM_N + columns[None, :], out.to(out_ptr.dtype.element_ty), mask=inside[None, :])


def serves(x: Tensor) -> bool:
    """True if this module should compute products of x [T, K]."""
    return 0 < len(x) <= MAX_ROWS and x.element_size() == 2


class Weight(NamedTuple):
    """Weight [N, K] with contiguous rows, in x's dtype or as bytes of e4m3 with a scale for each output."""

    values: Tensor
    scales: Tensor | None  # [N] float32
    bias: Tensor | None  # [N]


def multiply(
    x: Tensor,
    weight: Weight,
    *,
    dtype: torch.dtype,
    x_scales: Tensor | None = None,
    is_gated: bool = False,
    config: Config | None = None,
    num_splits: int | None = None,
) -> Tensor:
    """Multiply x [T, K] with contiguous rows, T at most 16 → [T, N], or half of N with a gate, in `dtype`.

    With e4m3 weights x is bytes of e4m3 too, with x_scales [T] float32.
    """
    values, w_scales, bias = weight
    (num_rows, num_inputs), num_outputs = x.shape, len(values) // 2 if is_gated else len(values)
    assert 0 < num_rows <= _BLOCK_M.value
    assert values.shape[1] == num_inputs
    assert values.is_contiguous()
    assert x.stride(1) == 1
    assert x.dtype == values.dtype
    gpu = device_info(x.device)
    config = config or choose_config(values.element_size(), gpu)
    if num_splits is None:
        num_splits = choose_num_splits(num_outputs, num_inputs * values.element_size(), config, gpu)
    split_k = triton.cdiv(triton.cdiv(num_inputs, config.BLOCK_K), num_splits) * config.BLOCK_K
    num_splits = triton.cdiv(num_inputs, split_k)
    out = torch.empty((num_rows, num_outputs), dtype=dtype, device=x.device)
    sums = out
    if num_splits > 1:
        shape = (num_splits, 2 if is_gated else 1, num_rows, num_outputs)
        sums = torch.empty(shape, dtype=torch.float32, device=x.device)
    fp8 = gpu.fp8_kind if w_scales is not None else 0
    _few_rows[(triton.cdiv(num_outputs, config.BLOCK_N), num_splits)](
        x, x_scales, values, w_scales, bias, sums, num_rows, x.stride(0),
        NUM_N=num_outputs,
        NUM_K=num_inputs,
        SPLIT_K=split_k,
        IS_GATED=is_gated,
        IS_SPLIT=num_splits > 1,
        FP8=fp8,
        **dependent_launch(gpu),
        **config._asdict(),
    )  # fmt: skip
    if num_splits > 1:
        add_splits(sums, bias, out, x_scales=x_scales, w_scales=w_scales, is_gated=is_gated)
    return out


def add_splits(
    sums: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    x_scales: Tensor | None = None,
    w_scales: Tensor | None = None,
    is_gated: bool = False,
) -> None:
    """Write out [T, N]: sums [splits, T, N] float32 or int32, with a gate [splits, 2, T, N], in order, and a bias."""
    num_rows, num_outputs = out.shape
    _add_splits[(triton.cdiv(num_outputs, 1024), num_rows)](
        sums, x_scales, w_scales, bias, out, len(sums), NUM_N=num_outputs, IS_GATED=is_gated, BLOCK_N=1024,
        num_warps=4, **dependent_launch(device_info(out.device)),
    )  # fmt: skip
