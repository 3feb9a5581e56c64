# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Products of exact mode: y = x wᵀ + b, where a row's bits depend on that row and the weight alone.

cuBLAS chooses tiles, and parts of K, by the number of rows. Here each output is one chain of dots along the whole of K,
by one instruction for any number of rows: wgmma takes 64 rows at least, so there one row is padded to 64. The weights
are read once for up to 64 rows, 64 operations per byte, where an H200 has some 180: few rows stay bound by memory.
K is never split. So a narrow matrix leaves multiprocessors idle at few rows: 1,024 outputs are 64 programs.

cuBLAS over rows padded to a fixed number was the other way. With 256 rows in each call a decode of one row takes the
operations of 256 (5.2 ms of an 8B instead of 3.7), and 2,048 rows read the weights 8 times (30 ms beside 41): both
lose more than a tile that is 0.7 of cuBLAS's speed. On an H200 these products take 1.0 to 1.2 of cuBLAS's time at up to
64 rows, and 1.2 to 1.6 at 256.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..dependent import wait_for_previous
from ..device_info import DeviceInfo, dependent_launch, device_info
from .byte_linear import Config as Config


def choose_config(num_rows: int, num_outputs: int, element_size: int, gpu: DeviceInfo) -> Config:
    """Choose the tile: all of a GPU's have one instruction, so no choice changes a bit. On an H200 the best of 7."""
    if element_size > 2:
        return Config(16, 32, 32, 4, 1)  # float32 has no tensor cores to fill: this compiles fast
    is_narrow = num_outputs < 32 * gpu.num_multiprocessors
    if not gpu.has_strong_cores:
        if num_rows <= 16:
            return Config(16, 16 if is_narrow else 32, 128, 4, 4)
        return Config(64, 64, 64, 4, 3) if num_rows <= 64 else Config(128, 128, 32, 8, 3)
    is_wide = num_outputs >= 128 * gpu.num_multiprocessors
    if num_rows <= 64:
        if is_narrow:
            return Config(64, 32, 256, 4, 3)
        return Config(64, 64, 64, 4, 6) if is_wide else Config(64, 64, 128, 4, 4)
    if num_rows <= 512 and not is_wide:
        return Config(64, 64, 64, 4, 5) if is_narrow else Config(128, 128, 64, 8, 4)
    return Config(128, 256, 64, 8, 3)


@triton.jit(do_not_specialize=["num_rows"])
def _exact_linear(
    x_ptr, w_ptr, bias_ptr, out_ptr, num_rows, x_stride, NUM_N: tl.constexpr, NUM_K: tl.constexpr,
    DEPENDENT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Write out [rows, NUM_N]. Programs of equal outputs run concurrently, so the first one's weights are in L2."""
    wait_for_previous(DEPENDENT)
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns, ks = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)
    row_inside, column_inside = rows < num_rows, columns < NUM_N
    x_ptrs = x_ptr + rows.to(tl.int64)[:, None] * x_stride + ks[None, :]
    w_ptrs = w_ptr + columns.to(tl.int64)[:, None] * NUM_K + ks[None, :]
    out = tl.full([BLOCK_M, BLOCK_N], 0.0, tl.float32)
    for start in range(0, NUM_K, BLOCK_K):
        x_mask, w_mask = row_inside[:, None], column_inside[:, None]
        if NUM_K % BLOCK_K:
            x_mask, w_mask = x_mask & (start + ks < NUM_K)[None, :], w_mask & (start + ks < NUM_K)[None, :]
        x = tl.load(x_ptrs + start, mask=x_mask, other=0.0)
        w = tl.load(w_ptrs + start, mask=w_mask, other=0.0)
        out = tl.dot(x, tl.trans(w), out, input_precision="ieee")
    if bias_ptr is not None:
        out += tl.load(bias_ptr + columns, mask=column_inside, other=0.0).to(tl.float32)[None, :]
    out_ptrs = out_ptr + rows.to(tl.int64)[:, None] * NUM_N + columns[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=row_inside[:, None] & column_inside[None, :])


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None, *, config: Config | None = None) -> Tensor:
    """Multiply x [T, K] with contiguous rows by weight [N, K] of its dtype → [T, N]."""
    (num_rows, num_inputs), num_outputs = x.shape, len(weight)
    assert weight.shape == (num_outputs, num_inputs)
    assert weight.is_contiguous()
    assert x.stride(1) == 1
    assert x.dtype == weight.dtype
    gpu = device_info(x.device)
    config = config or choose_config(num_rows, num_outputs, x.element_size(), gpu)
    out = torch.empty((num_rows, num_outputs), dtype=x.dtype, device=x.device)
    if num_rows == 0:
        return out
    _exact_linear[(triton.cdiv(num_rows, config.BLOCK_M), triton.cdiv(num_outputs, config.BLOCK_N))](
        x, weight, bias, out, num_rows, x.stride(0), NUM_N=num_outputs, NUM_K=num_inputs, **dependent_launch(gpu),
        **config._asdict(),
    )  # fmt: skip
    return out
