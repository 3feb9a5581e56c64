# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Rotation of queries and of the shared key beside the write of the latent cache, and products of each head.

One program takes one token: its heads' last numbers, its latent, its key. It reads and writes Hq·r + R + r elements of
2 bytes and reads 4·r bytes of angles: bound by memory. The products are batched matmuls of cuBLAS.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..arguments import CacheView
from .attention_common import as_loaded
from .rope_and_cache import rotate_heads, to_stored


def pack_heads(weight: Tensor) -> Tensor:
    return weight.contiguous()


def head_linear(x: Tensor, packed: Tensor) -> Tensor:
    return torch.bmm(x.transpose(0, 1), packed.transpose(1, 2)).transpose(0, 1)


@triton.jit(do_not_specialize=["num_heads"], do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def _latent_and_cache(
    q_ptr, latent_ptr, k_ptr, y_ptr, cache_ptr, cos_sin_ptr, positions_ptr, slots_ptr, num_heads, q_token_stride,
    q_head_stride, latent_stride, k_stride, y_token_stride, y_head_stride, cos_sin_stride, block_stride, slot_stride,
    RANK: tl.constexpr, ROTARY: tl.constexpr, BLOCK_SIZE: tl.constexpr, BLOCK_HEADS: tl.constexpr,
    BLOCK_HALF: tl.constexpr, BLOCK_R: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    token = tl.program_id(0).to(tl.int64)
    half = tl.arange(0, BLOCK_HALF)[None, :]
    angles_ptr = cos_sin_ptr + tl.load(positions_ptr + token) * cos_sin_stride
    cos = tl.load(angles_ptr + half, mask=half < ROTARY // 2, other=0.0)
    sin = tl.load(angles_ptr + ROTARY // 2 + half, mask=half < ROTARY // 2, other=0.0)
    rotate_heads(
        q_ptr + token * q_token_stride, q_head_stride, y_ptr + token * y_token_stride, y_head_stride, None, 1.0, cos,
        sin, 0.0, num_heads, ROTARY, ROTARY, BLOCK_HEADS, BLOCK_HALF, 1, False, False,
    )  # fmt: skip
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        line_ptr = cache_ptr + slot // BLOCK_SIZE * block_stride + slot % BLOCK_SIZE * slot_stride
        rotate_heads(
            k_ptr + token * k_stride, 0, line_ptr + RANK, 0, None, 1.0, cos, sin, 0.0, 1, ROTARY, ROTARY, 1, BLOCK_HALF,
            1, False, FP8,
        )  # fmt: skip
        ranks = tl.arange(0, BLOCK_R)
        latent = tl.load(latent_ptr + token * latent_stride + ranks, mask=ranks < RANK, other=0.0)
        if FP8:
            latent = to_stored(latent.to(tl.float32), 1.0, FP8)
        tl.store(line_ptr + ranks, latent.to(cache_ptr.dtype.element_ty), mask=ranks < RANK)


def latent_and_cache(
    q: Tensor, latent: Tensor, k: Tensor, positions: Tensor, slots: Tensor, cos_sin: Tensor, up: Tensor,
    cache: CacheView,
) -> Tensor:  # fmt: skip
    """Like ops.latent_and_cache → a new contiguous q [T, Hq, R + r]."""
    num_tokens, num_heads, _ = q.shape
    (rank, inner), rotary, lines = up.shape[1:], cos_sin.shape[1], cache.keys
    assert latent.shape == (num_tokens, rank)
    assert k.shape == (num_tokens, rotary)
    assert lines.shape[1] == 1
    assert lines.shape[3] == rank + rotary
    assert all(x.stride(-1) == 1 for x in (q, latent, k, cos_sin, lines))
    y = torch.empty(num_tokens, num_heads, rank + rotary, dtype=q.dtype, device=q.device)
    y[..., :rank] = head_linear(q[..., :inner], up)
    turning, turned = q[..., inner:], y[..., rank:]
    _latent_and_cache[(num_tokens,)](
        turning, latent, k, turned, as_loaded(lines), cos_sin, positions, slots, num_heads, *q.stride()[:2],
        latent.stride(0), k.stride(0), *y.stride()[:2], cos_sin.stride(0), lines.stride(0), lines.stride(2),
        RANK=rank, ROTARY=rotary, BLOCK_SIZE=lines.shape[2], BLOCK_HEADS=triton.next_power_of_2(num_heads),
        BLOCK_HALF=triton.next_power_of_2(rotary // 2), BLOCK_R=triton.next_power_of_2(rank),
        FP8=lines.dtype == torch.float8_e4m3fn, num_warps=4,
    )  # fmt: skip
    return y
