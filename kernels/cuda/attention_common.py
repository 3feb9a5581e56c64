# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Functions shared by the two attention kernels: loading a tile of the paged cache, a step of online softmax.

There are two kernels, because a single one with a branch would lose its software pipelining, at least 2x (Ringlein et
al. 2025, arXiv 2511.11581).
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..arguments import AttentionArgs, CacheView, RaggedBatch
from .device_info import DeviceInfo

LOG2_E = 1.4426950408889634  # exp(x) = exp2(x · LOG2_E), and exp2 is one instruction


class Config(NamedTuple):
    """Tile of an attention kernel."""

    BLOCK_M: int  # (query token, head) pairs, padded; in a decode query heads of one KV head
    BLOCK_N: int  # keys per step
    num_warps: int
    num_stages: int


@triton.jit
def row_of(query_start_loc_ptr, tile, first_row, num_rows, num_heads, BLOCK_M: tl.constexpr):
    """Find the row of a tile of BLOCK_M (token, head) pairs, and the row's first tile.

    Row r's tiles begin at (query_start_loc[r] - first_row) · num_heads // BLOCK_M + (r - first_row). This needs no sum
    over the previous rows, increases with r, and leaves room for all tiles of a row.
    """
    low, high, low_begin = first_row, first_row + num_rows, 0  # begin(low) <= tile < begin(high)
    while high - low > 1:
        middle = (low + high) // 2
        tokens = (tl.load(query_start_loc_ptr + middle) - first_row).to(tl.int64)
        begin = (tokens * num_heads // BLOCK_M).to(tl.int32) + middle - first_row
        is_below = begin <= tile
        low_begin = tl.where(is_below, begin, low_begin)
        low, high = tl.where(is_below, middle, low), tl.where(is_below, high, middle)
    return low, low_begin


@triton.jit
def load_blocks(table_ptr, keys, oldest, newest, BLOCK_SIZE: tl.constexpr):
    """Load the block numbers [tile] of the cached positions `keys` [tile]; entries not in oldest .. newest stay unread.

    Loops call this one step ahead of `load_tile`. If both ran in one step, a load would depend on a load, and Triton
    would split its stages between them: with 4 stages nothing of the next tile was in flight.
    """
    return tl.load(table_ptr + keys // BLOCK_SIZE, mask=(keys >= oldest) & (keys <= newest), other=0)


def fp8_kind(cache: Tensor, gpu: DeviceInfo) -> int:
    """Return the kernels' FP8 constant: 0 the queries' dtype, 1 e4m3 that the GPU converts, 2 e4m3 by its bits."""
    if cache.dtype != torch.float8_e4m3fn:
        return 0
    return gpu.fp8_kind


@triton.jit
def widen(x, FP8: tl.constexpr):
    """Convert loaded bytes of e4m3 to float16, which holds every value of e4m3 (Micikevicius et al. 2022).

    float16 and not the model's dtype: one instruction makes two float16 values, bfloat16 takes three. By bits: sign and
    magnitude move to their places in float16, whose exponent has a bias larger by 8.
    """
    if FP8 == 1:
        x = x.to(tl.float8e4nv, bitcast=True).to(tl.float16)
    elif FP8 == 2:
        bits = x.to(tl.uint16)
        x = (((bits & 0x80) << 8) | ((bits & 0x7F) << 7)).to(tl.float16, bitcast=True) * 256.0
    return x


@triton.jit
def load_tile(
    k_ptr, v_ptr, blocks, keys, readable, block_stride, slot_stride,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_SIZE: tl.constexpr, MASKED: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Load keys and values [tile, BLOCK_D] of the cached positions `keys` [tile]; unreadable ones are zero.

    An unreadable slot may hold NaN, and a probability of 0 times NaN is NaN. With MASKED false all of `keys` are
    readable.
    """
    dims = tl.arange(0, BLOCK_D)[None, :]
    offsets = (blocks.to(tl.int64) * block_stride + keys % BLOCK_SIZE * slot_stride)[:, None] + dims
    if not MASKED and HEAD_DIM == BLOCK_D:
        k, v = tl.load(k_ptr + offsets), tl.load(v_ptr + offsets)
    else:
        mask = dims < HEAD_DIM
        if MASKED:
            mask = mask & readable[:, None]
        k = tl.load(k_ptr + offsets, mask=mask, other=0)
        v = tl.load(v_ptr + offsets, mask=mask, other=0)
    if FP8:
        # Bytes cannot be transposed by ldmatrix: gathered one by one, v took a third of a decode's instructions. An or
        # with a 0 that LLVM finds, after Triton's passes, keeps these from moving v's conversion behind the transpose.
        v |= (slot_stride * 2 & 1).to(tl.uint8)
    return widen(k, FP8), widen(v, FP8)


@triton.jit
def _sum_of_keys(x, EXACT: tl.constexpr):
    """Sum x [rows, keys] over the keys; EXACT: half to half, in an order that no layout of the tile changes."""
    if EXACT:
        for _ in tl.static_range(8):  # 256 keys at most
            if x.shape[1] > 1:
                x = tl.sum(tl.reshape(x, [x.shape[0], 2, x.shape[1] // 2]), axis=1)
        x = tl.reshape(x, [x.shape[0]])
    else:
        x = tl.sum(x, axis=1)
    return x


@triton.jit
def fold(maximum, total, out, span_maximum, span_total, span_out):
    """Add a span's state [rows], [rows], [rows, dims] to the state of the keys before it.

    Every kernel adds spans by these operations, one after the other. A span without visible keys changes no bit.
    """
    new_maximum = tl.maximum(maximum, span_maximum)
    shrink, span_shrink = tl.exp2(maximum - new_maximum), tl.exp2(span_maximum - new_maximum)
    total = tl.fma(total, shrink, span_total * span_shrink)
    out = tl.fma(out, shrink[:, None], span_out * span_shrink[:, None])
    return new_maximum, total, out


@triton.jit
def attend(
    q,
    k,
    v,
    visible,
    maximum,
    total,
    out,
    scale_log2,
    inner_scale,
    MASKED: tl.constexpr,
    CAPPED: tl.constexpr,
    EXACT: tl.constexpr = False,
):
    """Fold one tile into softmax(q kᵀ · scale) v (Milakov & Gimelshein 2018; Dao et al. 2022).

    With CAPPED, scores are cap · tanh(q kᵀ · scale / cap): `inner_scale` is 2 · scale / cap · log2(e), for exp2, and
    `scale_log2` is cap · log2(e). Without, `scale_log2` is scale · log2(e).

    State of a query row: `maximum` m of the scores in base 2, `total` Σ exp2(s - m), `out` Σ exp2(s - m) · v. m begins
    finite: a row that sees nothing of its first tiles gets exp2(-inf) = 0 there, not exp2(-inf + inf) = NaN.
    A tile in which a row sees no key changes no bit of the row's state. EXACT: nor does a tile's shape, because the
    instruction of the dots adds a row's products in one order.
    """
    scores = tl.dot(q, tl.trans(k), input_precision="ieee")
    if CAPPED:
        scores = 1.0 - 2.0 / (1.0 + tl.exp2(scores * inner_scale))
    if MASKED:
        scores = tl.where(visible, scores, float("-inf"))
    new_maximum = tl.maximum(maximum, tl.max(scores, axis=1) * scale_log2)
    # fma by name: the compiler's choice to fuse might differ between kernels.
    probabilities = tl.exp2(tl.fma(scores, scale_log2, -new_maximum[:, None]))
    shrink = tl.exp2(maximum - new_maximum)
    total = tl.fma(total, shrink, _sum_of_keys(probabilities, EXACT))
    out = tl.dot(probabilities.to(v.dtype), v, out * shrink[:, None], input_precision="ieee")
    return new_maximum, total, out


@triton.jit
def first_state(sinks_ptr, heads, inside, BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the state (maximum, total, out) before the first key: a head's sink counts once."""
    maximum = tl.full([BLOCK_M], -1e30, tl.float32)
    total = tl.full([BLOCK_M], 0.0, tl.float32)
    if sinks_ptr is not None:
        maximum = tl.load(sinks_ptr + heads, mask=inside, other=0.0) * 1.4426950408889634
        total = tl.full([BLOCK_M], 1.0, tl.float32)
    return maximum, total, tl.full([BLOCK_M, BLOCK_D], 0.0, tl.float32)


@triton.jit
def no_state(BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr):
    """Return the state of a span before its first key."""
    maximum = tl.full([BLOCK_M], -1e30, tl.float32)
    return maximum, tl.full([BLOCK_M], 0.0, tl.float32), tl.full([BLOCK_M, BLOCK_D], 0.0, tl.float32)


def score_scales(args: AttentionArgs) -> tuple[float, float]:
    """Return (scale_log2, inner_scale) for `attend`."""
    if not args.softcap:
        return args.scale * LOG2_E, 0.0
    return args.softcap * LOG2_E, 2 * args.scale / args.softcap * LOG2_E


@triton.jit
def scales_of_head(kv_scales_ptr, kv_head, num_kv_heads, scale_log2, inner_scale, CAPPED: tl.constexpr):
    """Return scale_log2 and inner_scale, multiplied by the scale of the head's keys, and the scale of its values."""
    v_scale = 1.0
    if kv_scales_ptr is not None:
        if CAPPED:
            inner_scale *= tl.load(kv_scales_ptr + kv_head)
        else:
            scale_log2 *= tl.load(kv_scales_ptr + kv_head)
        v_scale = tl.load(kv_scales_ptr + num_kv_heads + kv_head)
    return scale_log2, inner_scale, v_scale


def as_loaded(cache: Tensor) -> Tensor:
    """View a cache of e4m3 as bytes, because before compute capability 8.9 Triton does not know e4m3."""
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache


def check_paged(q: Tensor, cache: CacheView, ragged: RaggedBatch, args: AttentionArgs) -> None:
    num_heads, head_dim = q.shape[1:]
    check_cache(cache, num_heads=num_heads, head_dim=head_dim)
    block_size = cache.keys.shape[2]
    assert block_size & (block_size - 1) == 0  # // and % compile to a shift and a mask
    assert cache.keys.dtype in (q.dtype, torch.float8_e4m3fn)
    assert q.stride(2) == ragged.block_tables.stride(1) == 1
    assert args.scale > 0  # `attend` takes the maximum before scaling
    assert args.softcap >= 0


def check_cache(cache: CacheView, *, num_heads: int, head_dim: int) -> None:
    keys, values, scales = cache
    assert keys.shape[3] == head_dim
    assert num_heads % keys.shape[1] == 0
    assert values.shape == keys.shape
    assert values.stride() == keys.stride()
    assert values.dtype == keys.dtype
    assert keys.stride(3) == 1
    if scales is not None:
        assert keys.dtype == torch.float8_e4m3fn
        assert scales.shape == (2, keys.shape[1])
        assert scales.dtype == torch.float32
        assert scales.is_contiguous()
