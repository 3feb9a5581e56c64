# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Paged attention of rows with several query tokens: causal softmax(q kᵀ · scale) v after any cached context.

One program computes BLOCK_Q query tokens of one row and the query heads of one KV head: its BLOCK_M dot rows are
(token, head) pairs, so keys and values are read once for all heads that share them (Ringlein et al. 2025, arXiv
2511.11581; online softmax and tiling: Dao 2023, FlashAttention-2). A row of n tokens after c cached ones takes
4·Hq·D·n·(c + n/2) operations; a tile of keys and values in 16 bits gives BLOCK_M operations per byte: bound by the
tensor cores.

    positions   0 ..... oldest | left .......... right | newest
                  skipped      | masked | whole tiles  | masked | skipped
"""

import triton
import triton.language as tl
from torch import Tensor

from ..arguments import AttentionArgs, CacheView, RaggedBatch
from . import decode_plan
from . import device_info as settings
from .attention_common import Config as Config
from .attention_common import (
    as_loaded,
    attend,
    check_paged,
    first_state,
    fold,
    fp8_kind,
    load_blocks,
    load_tile,
    no_state,
    row_of,
    scales_of_head,
    score_scales,
)
from .attention_decode import exact_config
from .decode_plan import Spans
from .device_info import DeviceInfo, device_info
from .tile_configs import measured


def choose_config(
    num_dot_rows: int, max_dot_rows: int, head_dim: int, element_size: int, gpu: DeviceInfo, *, cache_size: int = 2
) -> Config:
    """Choose the tile. `num_dot_rows`: (token, head) pairs of the batch; `max_dot_rows`: the pairs of its longest row
    that share a KV head; `cache_size`: bytes of an element of the cache.

    Untuned on a GPU. Chosen from the compiler's report (tests/gpu/compile_report.py) so that nothing spills and every
    GPU has the shared memory: 64 keys a step take 183 registers on compute capability 9.0 and spill on 8.0.
    """
    block_d = max(triton.next_power_of_2(head_dim), 16)
    if element_size > 2:
        return Config(16, 16, 4, 1)  # float32 has no tensor cores to fill: this compiles fast
    if max_dot_rows <= 16:
        # Bound by memory, like decode. 4 warps at head size 256 with a window spill 8 bytes on 8.0.
        return Config(16, max(4096 // block_d, 16), 8 if block_d > 128 else 4, 4)
    # The strong ones have twice the shared memory, too.
    is_strong, is_large = gpu.has_strong_cores, block_d > 128
    # wgmma takes at least 64 rows. 128 rows halve the traffic from L2, if these tiles still fill the GPU.
    is_wide = num_dot_rows >= 128 * gpu.num_multiprocessors and (is_strong or not is_large)
    tile = measured("prefill", gpu.capability, head_dim, cache_size)
    if tile and (is_wide or tile[0] < 128):
        return Config(*tile)
    return Config(
        BLOCK_M=128 if is_wide else 64,
        BLOCK_N=64 if is_strong and not is_large else 32,
        num_warps=8 if is_wide or is_large else 4,
        num_stages=2 if is_large else 3,
    )


def choose_exact_config(num_dot_rows: int, head_dim: int, element_size: int, gpu: DeviceInfo) -> Config:
    """Choose the tile in exact mode: a decode's keys per step; more rows for the same instruction change no bit."""
    config = exact_config(head_dim, element_size, gpu)
    if element_size > 2:
        return config
    if head_dim > 128:
        return config._replace(BLOCK_M=64, num_warps=8)  # 4 spill 416 bytes
    is_wide = num_dot_rows >= 128 * gpu.num_multiprocessors and gpu.has_strong_cores
    return config._replace(BLOCK_M=128 if is_wide else 64, num_warps=8 if is_wide else 4)


@triton.jit
def _attend_span(
    q, k_ptr, v_ptr, table_ptr, positions, oldest, newest, begin, end, maximum, total, out, sum_maximum, sum_total,
    sum_out, scale_log2, inner_scale, block_stride, slot_stride,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr,
    LOOKAHEAD: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr, CAPPED: tl.constexpr,
    FP8: tl.constexpr, SHORT: tl.constexpr, LONG: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    """Add the keys [begin, end) to a span's state; with SHORT, add the spans of Spans that end here to the sum."""
    blocks = load_blocks(table_ptr, begin + tl.arange(0, BLOCK_N), oldest, newest, BLOCK_SIZE)
    for start in range(begin, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        readable = (keys >= oldest) & (keys <= newest)
        k, v = load_tile(
            k_ptr, v_ptr, blocks, keys, readable, block_stride, slot_stride, HEAD_DIM, BLOCK_D, BLOCK_SIZE, MASKED, FP8
        )
        blocks = load_blocks(table_ptr, keys + BLOCK_N, oldest, newest, BLOCK_SIZE)
        visible = keys[None, :] <= positions[:, None] + LOOKAHEAD
        if LOOKAHEAD:
            visible = visible & (keys[None, :] <= newest)
        if WINDOW:
            visible = visible & (keys[None, :] > positions[:, None] - WINDOW)
        maximum, total, out = attend(
            q, k, v, visible, maximum, total, out, scale_log2, inner_scale, MASKED, CAPPED, SHORT > 0
        )  # fmt: skip
        if SHORT:
            next_key = start + BLOCK_N
            if (next_key % SHORT == 0) & ((next_key <= LIMIT) | (next_key % LONG == 0)):
                sum_maximum, sum_total, sum_out = fold(sum_maximum, sum_total, sum_out, maximum, total, out)
                maximum, total, out = no_state(BLOCK_M, BLOCK_D)
    return maximum, total, out, sum_maximum, sum_total, sum_out


@triton.jit(
    do_not_specialize=["table_stride", "num_decodes", "num_rows"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr", "tables_ptr"],
)
def _prefill(
    q_ptr, k_ptr, v_ptr, kv_scales_ptr, sinks_ptr, out_ptr, query_start_loc_ptr, seq_lens_ptr, tables_ptr, table_stride,
    num_decodes, num_rows, scale_log2, inner_scale, q_token_stride, q_head_stride, out_token_stride, out_head_stride,
    block_stride, kv_head_stride, slot_stride,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, GROUP: tl.constexpr, NUM_KV_HEADS: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, WINDOW: tl.constexpr, LOOKAHEAD: tl.constexpr, BLOCK_Q: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAPPED: tl.constexpr, FP8: tl.constexpr, RAGGED: tl.constexpr,
    SHORT: tl.constexpr, LONG: tl.constexpr, LIMIT: tl.constexpr,
):  # fmt: skip
    # A row's last blocks see the most keys, so they run first and the GPU does not end on a few long programs.
    program = tl.num_programs(0) - 1 - tl.program_id(0)
    query_block, kv_head = program // NUM_KV_HEADS, program % NUM_KV_HEADS
    row, row_begin = row_of(query_start_loc_ptr, query_block, num_decodes, num_rows, 1, BLOCK_Q)
    first_token = tl.load(query_start_loc_ptr + row)
    query_len = tl.load(query_start_loc_ptr + row + 1) - first_token
    first = (query_block - row_begin) * BLOCK_Q
    if first >= query_len:
        return
    if RAGGED:  # noqa: SIM102  a compile-time constant and a run-time value
        if query_len == 1:
            return
    pairs, dims = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    tokens, heads = first + pairs // GROUP, kv_head * GROUP + pairs % GROUP
    inside = ((pairs < BLOCK_Q * GROUP) & (tokens < query_len))[:, None] & (dims < HEAD_DIM)[None, :]
    rows = (first_token + tokens).to(tl.int64)
    q_ptrs = q_ptr + rows[:, None] * q_token_stride + heads[:, None] * q_head_stride + dims[None, :]
    q = tl.load(q_ptrs, mask=inside, other=0.0)
    if FP8:
        q = q.to(tl.float16)
    scale_log2, inner_scale, v_scale = scales_of_head(
        kv_scales_ptr, kv_head, NUM_KV_HEADS, scale_log2, inner_scale, CAPPED
    )

    context = tl.load(seq_lens_ptr + row) - query_len
    last_query = context + tl.minimum(first + BLOCK_Q, query_len) - 1
    newest = tl.minimum(last_query + LOOKAHEAD, context + query_len - 1)  # last key that a query of the block sees
    oldest = tl.maximum(context + first - WINDOW + 1, 0) if WINDOW else 0
    begin = oldest // BLOCK_N * BLOCK_N
    left = begin  # every query of the block sees all of the keys [left, right)
    if WINDOW:
        left = (tl.maximum(last_query - WINDOW + 1, 0) + BLOCK_N - 1) // BLOCK_N * BLOCK_N
        left = tl.minimum(left, (newest + BLOCK_N) // BLOCK_N * BLOCK_N)
    seen = tl.minimum(context + first + LOOKAHEAD, context + query_len - 1) + 1  # by the block's first query
    right = tl.maximum(seen // BLOCK_N * BLOCK_N, left)

    table_ptr = tables_ptr + row.to(tl.int64) * table_stride
    k_ptr += kv_head.to(tl.int64) * kv_head_stride
    v_ptr += kv_head.to(tl.int64) * kv_head_stride
    # Padding has the last token's position: beyond it a window might be empty, and 0 would be divided by 0.
    positions = tl.minimum(context + tokens, last_query)
    sum_maximum, sum_total, sum_out = first_state(sinks_ptr, heads, pairs < BLOCK_Q * GROUP, BLOCK_M, BLOCK_D)
    maximum, total, out = sum_maximum, sum_total, sum_out
    if SHORT:
        maximum, total, out = no_state(BLOCK_M, BLOCK_D)
    if WINDOW:
        maximum, total, out, sum_maximum, sum_total, sum_out = _attend_span(
            q, k_ptr, v_ptr, table_ptr, positions, oldest, newest, begin, left, maximum, total, out, sum_maximum,
            sum_total, sum_out, scale_log2, inner_scale, block_stride, slot_stride, HEAD_DIM, BLOCK_D, BLOCK_SIZE,
            WINDOW, LOOKAHEAD, BLOCK_M, BLOCK_N, True, CAPPED, FP8, SHORT, LONG, LIMIT,
        )  # fmt: skip
    maximum, total, out, sum_maximum, sum_total, sum_out = _attend_span(
        q, k_ptr, v_ptr, table_ptr, positions, oldest, newest, left, right, maximum, total, out, sum_maximum,
        sum_total, sum_out, scale_log2, inner_scale, block_stride, slot_stride, HEAD_DIM, BLOCK_D, BLOCK_SIZE,
        WINDOW, LOOKAHEAD, BLOCK_M, BLOCK_N, False, CAPPED, FP8, SHORT, LONG, LIMIT,
    )  # fmt: skip
    maximum, total, out, sum_maximum, sum_total, sum_out = _attend_span(
        q, k_ptr, v_ptr, table_ptr, positions, oldest, newest, right, newest + 1, maximum, total, out, sum_maximum,
        sum_total, sum_out, scale_log2, inner_scale, block_stride, slot_stride, HEAD_DIM, BLOCK_D, BLOCK_SIZE,
        WINDOW, LOOKAHEAD, BLOCK_M, BLOCK_N, True, CAPPED, FP8, SHORT, LONG, LIMIT,
    )  # fmt: skip
    if SHORT:
        _, total, out = fold(sum_maximum, sum_total, sum_out, maximum, total, out)

    out_ptrs = out_ptr + rows[:, None] * out_token_stride + heads[:, None] * out_head_stride + dims[None, :]
    # A row's total is at least 1; the total of a row of 0 tokens, which pads a graph, is 0.
    out = out * (v_scale / tl.maximum(total, 1e-30))[:, None]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=inside)


def prefill_attention(
    q: Tensor, cache: CacheView, ragged: RaggedBatch, args: AttentionArgs, out: Tensor, *, config: Config | None = None
) -> None:
    """Write out[num_decodes:]: attention of rows [num_decodes, B), whose query tokens are q[num_decodes:].

    If num_decodes is None, rows of two or more query tokens are computed. A row of 0 tokens gets zeros.

    q, out [T, Hq, D]. `config` is chosen if None.
    """
    check_paged(q, cache, ragged, args)
    k_cache, v_cache, kv_scales = cache
    assert out.shape == q.shape
    assert out.stride(2) == 1
    num_decodes = ragged.num_decodes or 0
    num_tokens, num_rows = len(q) - num_decodes, len(ragged.seq_lens) - num_decodes
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, block_size = k_cache.shape[1:3]
    group = num_heads // num_kv_heads
    spans = decode_plan.SPANS if settings.EXACT.is_on else Spans(0, 0, 0)
    if config is None and settings.EXACT.is_on:
        config = choose_exact_config(num_tokens * num_heads, head_dim, q.element_size(), device_info(q.device))
    config = config or choose_config(
        num_tokens * num_heads, ragged.max_query_len * group, head_dim, q.element_size(), device_info(q.device),
        cache_size=k_cache.element_size(),
    )  # fmt: skip
    config = config._replace(BLOCK_M=max(config.BLOCK_M, triton.next_power_of_2(group)))
    block_q = config.BLOCK_M // group
    # Upper bound of the number of query blocks, known without reading the rows' lengths from the GPU.
    grid = ((num_tokens // block_q + num_rows) * num_kv_heads,)
    _prefill[grid](
        q, as_loaded(k_cache), as_loaded(v_cache), kv_scales, args.sinks, out, ragged.query_start_loc, ragged.seq_lens,
        ragged.block_tables, ragged.block_tables.stride(0), num_decodes, num_rows, *score_scales(args),
        *q.stride()[:2], *out.stride()[:2], *k_cache.stride()[:3],
        HEAD_DIM=head_dim,
        BLOCK_D=max(triton.next_power_of_2(head_dim), 16),
        GROUP=group,
        NUM_KV_HEADS=num_kv_heads,
        BLOCK_SIZE=block_size,
        WINDOW=args.sliding_window,
        LOOKAHEAD=args.lookahead,
        BLOCK_Q=block_q,
        CAPPED=args.softcap > 0,
        FP8=fp8_kind(k_cache, device_info(q.device)),
        RAGGED=ragged.num_decodes is None,
        SHORT=spans.short,
        LONG=spans.long,
        LIMIT=spans.limit,
        **config._asdict(),
    )  # fmt: skip
