# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Per-head norm of q and k (Qwen3), rotary embedding (Su et al. 2021) and the write into the paged cache in one kernel.

(x1, x2) → (x1·cos - x2·sin, x2·cos + x1·sin) with x1 = x[:R/2], x2 = x[R/2:R]; x[R:] stays. One program takes one token
and one KV head: its group of query heads, its key, its value. A token reads Hq·D + 2·Hkv·D elements of 2 bytes, writes
as many (1 byte each into a cache of e4m3), and reads 4·R bytes of cosines and sines; about 6 operations per element:
bound by memory.
Separate kernels for norm, rotation and write would move the elements three times.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..arguments import CacheView, RopeArgs
from .attention_common import as_loaded, check_cache
from .dependent import wait_for_previous
from .device_info import dependent_launch, device_info
from .norm import rms_norm


@triton.jit
def to_e4m3(x):
    """Round float32 x to a byte of e4m3, to nearest, ties to even, at most ±448.

    Works on bits, so that every GPU and the interpreter round alike: below 2^-6 e4m3 is a multiple of 2^-9, to which
    adding 2^14 rounds; above, its 3 bits of mantissa are the upper 3 of 23. NaN becomes ±480, which e4m3 reads as NaN.
    """
    bits = x.to(tl.uint32, bitcast=True)
    magnitude = tl.minimum(tl.abs(x), 448.0)
    small = (magnitude + 16384.0).to(tl.uint32, bitcast=True) - 0x46800000
    wide = magnitude.to(tl.uint32, bitcast=True)
    normal = ((wide + 0x7FFFF + ((wide >> 20) & 1)) >> 20) - (120 << 3)
    byte = (tl.where(magnitude < 0.015625, small, normal) & 0x7F) | ((bits >> 24) & 0x80)
    return byte.to(tl.uint8)


@triton.jit
def to_stored(x, scale, FP8: tl.constexpr):
    """Return float32 x in its stored form: with FP8 the byte of x / scale."""
    if FP8:
        x = to_e4m3(x / scale)
    return x


@triton.jit
def rotate_heads(
    x_ptr, x_stride, y_ptr, y_stride, norm_ptr, scale, cos, sin, eps, num_heads,
    HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, BLOCK_HEADS: tl.constexpr, BLOCK_HALF: tl.constexpr,
    BLOCK_REST: tl.constexpr, HAS_NORM: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """y[h] = rotate(norm(x[h])) for `num_heads` heads that lie `x_stride` and `y_stride` apart."""
    HALF: tl.constexpr = ROTARY_DIM // 2
    heads = tl.arange(0, BLOCK_HEADS)[:, None]
    half, rest = tl.arange(0, BLOCK_HALF)[None, :], ROTARY_DIM + tl.arange(0, BLOCK_REST)[None, :]
    in_half, in_rest = (heads < num_heads) & (half < HALF), (heads < num_heads) & (rest < HEAD_DIM)
    x_ptrs, y_ptrs = x_ptr + heads * x_stride, y_ptr + heads * y_stride
    dtype = y_ptr.dtype.element_ty
    x1 = tl.load(x_ptrs + half, mask=in_half, other=0.0).to(tl.float32)
    x2 = tl.load(x_ptrs + HALF + half, mask=in_half, other=0.0).to(tl.float32)
    if ROTARY_DIM < HEAD_DIM:
        x3 = tl.load(x_ptrs + rest, mask=in_rest, other=0.0).to(tl.float32)
    if HAS_NORM:
        squares = tl.sum(x1 * x1, axis=1) + tl.sum(x2 * x2, axis=1)
        if ROTARY_DIM < HEAD_DIM:
            squares += tl.sum(x3 * x3, axis=1)
        rms = tl.math.rsqrt(squares / HEAD_DIM + eps)[:, None]
        x1 *= rms * tl.load(norm_ptr + half, mask=half < HALF, other=0.0).to(tl.float32)
        x2 *= rms * tl.load(norm_ptr + HALF + half, mask=half < HALF, other=0.0).to(tl.float32)
        if ROTARY_DIM < HEAD_DIM:
            x3 *= rms * tl.load(norm_ptr + rest, mask=rest < HEAD_DIM, other=0.0).to(tl.float32)
    tl.store(y_ptrs + half, to_stored(x1 * cos - x2 * sin, scale, FP8).to(dtype), mask=in_half)
    tl.store(y_ptrs + HALF + half, to_stored(x2 * cos + x1 * sin, scale, FP8).to(dtype), mask=in_half)
    if ROTARY_DIM < HEAD_DIM:
        tl.store(y_ptrs + rest, to_stored(x3, scale, FP8).to(dtype), mask=in_rest)


@triton.jit(do_not_specialize_on_alignment=["positions_ptr", "slots_ptr"])
def _rope_and_cache(
    q_ptr, k_ptr, v_ptr, y_ptr, k_cache_ptr, v_cache_ptr, cos_sin_ptr, positions_ptr, slots_ptr,
    q_norm_ptr, k_norm_ptr, kv_scales_ptr, eps,
    q_token_stride, q_head_stride, k_token_stride, k_head_stride, v_token_stride, v_head_stride,
    y_token_stride, y_head_stride, cos_sin_stride, cache_block_stride, cache_head_stride, cache_slot_stride,
    HEAD_DIM: tl.constexpr, ROTARY_DIM: tl.constexpr, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    BLOCK_GROUP: tl.constexpr, BLOCK_HALF: tl.constexpr, BLOCK_REST: tl.constexpr, BLOCK_D: tl.constexpr,
    HAS_Q_NORM: tl.constexpr, HAS_K_NORM: tl.constexpr, FP8: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(DEPENDENT)
    token, kv_head = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    half = tl.arange(0, BLOCK_HALF)[None, :]
    in_half = half < ROTARY_DIM // 2
    angles_ptr = cos_sin_ptr + tl.load(positions_ptr + token) * cos_sin_stride
    cos = tl.load(angles_ptr + half, mask=in_half, other=0.0)
    sin = tl.load(angles_ptr + ROTARY_DIM // 2 + half, mask=in_half, other=0.0)
    first_head = kv_head * GROUP
    rotate_heads(
        q_ptr + token * q_token_stride + first_head * q_head_stride, q_head_stride,
        y_ptr + token * y_token_stride + first_head * y_head_stride, y_head_stride,
        q_norm_ptr, 1.0, cos, sin, eps, GROUP, HEAD_DIM, ROTARY_DIM, BLOCK_GROUP, BLOCK_HALF, BLOCK_REST, HAS_Q_NORM,
        False,
    )  # fmt: skip
    slot = tl.load(slots_ptr + token)
    if slot >= 0:
        place = slot // BLOCK_SIZE * cache_block_stride + slot % BLOCK_SIZE * cache_slot_stride
        place += kv_head * cache_head_stride
        k_scale, v_scale = 1.0, 1.0
        if kv_scales_ptr is not None:
            k_scale = tl.load(kv_scales_ptr + kv_head)
            v_scale = tl.load(kv_scales_ptr + tl.num_programs(1) + kv_head)
        rotate_heads(
            k_ptr + token * k_token_stride + kv_head * k_head_stride, 0, k_cache_ptr + place, 0,
            k_norm_ptr, k_scale, cos, sin, eps, 1, HEAD_DIM, ROTARY_DIM, 1, BLOCK_HALF, BLOCK_REST, HAS_K_NORM,
            FP8,
        )  # fmt: skip
        dims = tl.arange(0, BLOCK_D)
        v_ptrs = v_ptr + token * v_token_stride + kv_head * v_head_stride + dims
        v = tl.load(v_ptrs, mask=dims < HEAD_DIM, other=0.0)
        if FP8:
            v = to_stored(v.to(tl.float32), v_scale, FP8)
        tl.store(v_cache_ptr + place + dims, v.to(v_cache_ptr.dtype.element_ty), mask=dims < HEAD_DIM)


def rope_and_cache(
    q: Tensor, k: Tensor, v: Tensor, positions: Tensor, slot_mapping: Tensor, rope: RopeArgs, cache: CacheView
) -> Tensor:
    """Like ops.rope_and_cache → a new contiguous q [T, Hq, D]."""
    k_cache, v_cache, kv_scales = cache
    cos_sin, q_norm, k_norm, eps, v_norm = rope
    if v_norm is not None:
        v = rms_norm(v.reshape(-1, v.shape[2]), v_norm, eps=eps).view(v.shape)
    num_tokens, num_heads, head_dim = q.shape
    num_kv_heads, block_size = k_cache.shape[1:3]
    group, rotary_dim = num_heads // num_kv_heads, cos_sin.shape[1]
    check_cache(cache, num_heads=num_heads, head_dim=head_dim)
    assert k.shape == v.shape == (num_tokens, num_kv_heads, head_dim)
    assert rotary_dim % 2 == 0
    assert rotary_dim <= head_dim
    assert all(x.stride(-1) == 1 for x in (q, k, v, cos_sin))
    # Not in place: if a tile has fewer elements than threads, several threads load an element that one of them stores,
    # and a slow thread would load the stored value.
    y = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    _rope_and_cache[(num_tokens, num_kv_heads)](
        q, k, v, y, as_loaded(k_cache), as_loaded(v_cache), cos_sin, positions, slot_mapping, q_norm, k_norm,
        kv_scales, eps,
        *q.stride()[:2], *k.stride()[:2], *v.stride()[:2], *y.stride()[:2], cos_sin.stride(0), *k_cache.stride()[:3],
        HEAD_DIM=head_dim,
        ROTARY_DIM=rotary_dim,
        GROUP=group,
        BLOCK_SIZE=block_size,
        BLOCK_GROUP=triton.next_power_of_2(group),
        BLOCK_HALF=triton.next_power_of_2(max(rotary_dim // 2, 1)),  # 1, and masked, without rotation
        BLOCK_REST=triton.next_power_of_2(max(head_dim - rotary_dim, 1)),
        BLOCK_D=triton.next_power_of_2(head_dim),
        HAS_Q_NORM=q_norm is not None,
        HAS_K_NORM=k_norm is not None,
        FP8=k_cache.dtype == torch.float8_e4m3fn,
        num_warps=1 if group * head_dim <= 1024 else 4,  # 8 elements of 2 bytes a thread in one or two loads; untuned
        **dependent_launch(device_info(q.device)),
    )  # fmt: skip
    return y
