# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Paged attention of one query token per row: softmax(q kᵀ · scale) v over the row's cached tokens.

One program computes one row, one KV head and one of `num_splits` spans of the row's tokens; the query heads that share
the KV head are the rows of its dot, padded to the 16 that a tensor core needs. If few rows would leave the GPU idle,
spans run concurrently, and a second kernel merges their weighted results (flash-decoding: Dao et al. 2023; pages: Kwon
et al. 2023, PagedAttention). The grid depends on the number of rows and the bound `max_seq_len` alone: a program reads
its row's length from device memory, and an empty span ends at once. So a CUDA graph captured with
max_seq_len = max_model_len serves every length.
A row and KV head read 4·L·D bytes of keys and values in 16 bits for 4·L·D·group operations: `group` operations per
byte, so bound by memory. A cache in e4m3 takes half the bytes; its dots are in float16. With splits, another
8·Hq·D·num_splits bytes per row are written and read.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from ..arguments import AttentionArgs, CacheView, RaggedBatch
from .attention_common import (
    as_loaded,
    attend,
    check_paged,
    first_state,
    fp8_kind,
    load_blocks,
    load_tile,
    scales_of_head,
    score_scales,
)
from .device_info import DeviceInfo, dependent_launch, device_info
from .tile_configs import measured, min_tokens_per_split

# Programs per multiprocessor that keep its memory queue full; with fewer, rows are split. Untuned.
PROGRAMS_PER_MULTIPROCESSOR = 4
MAX_SPLITS = 64
# Of a thread over a cache of e4m3, so that four programs of 4 warps fit; without a limit they take up to 138.
MAX_REGISTERS = 128
# Programs of a mixed step's graph, which has the largest number of rows: 4 spans for each of 257 rows, 15 for 65.
# Untuned.
MAX_RAGGED_PROGRAMS = 8224


class Config(NamedTuple):
    BLOCK_M: int  # query heads of one KV head, padded
    BLOCK_N: int  # keys per step
    num_warps: int
    num_stages: int


def choose_config(group: int, head_dim: int, element_size: int, gpu: DeviceInfo) -> Config:
    """Choose the tile: measured if possible, else after 16 rows, 32 keys, 4 warps, 4 stages at head size 128.

    That tile won on an H100 among 540 configurations (IBM, arXiv 2511.11581). Other head sizes keep its 16 KiB of keys
    and values a step. Three steps, two of e4m3, are in flight in 53 KiB of shared memory (57 at head size 256): four
    programs share a multiprocessor of an H100, and one fits any GPU since Ampere.
    """
    block_m, block_d = max(triton.next_power_of_2(group), 16), max(triton.next_power_of_2(head_dim), 16)
    if tile := measured("decode", gpu.capability, head_dim, element_size):
        return Config(*tile)._replace(BLOCK_M=block_m)
    keys = 8192 // (block_d * element_size)
    if element_size == 1:
        return Config(block_m, min(max(keys, 16), 128), 4, 3)  # v in float16 takes another 16 KiB
    return Config(block_m, min(max(keys, 16), 64), 4, 4)


def choose_num_splits(num_programs: int, num_tokens: int, gpu: DeviceInfo, *, min_tokens: int | None = None) -> int:
    """Return the spans per row: enough to fill the GPU, at most as many as the longest row, `num_tokens`, may need."""
    wanted = PROGRAMS_PER_MULTIPROCESSOR * gpu.num_multiprocessors // num_programs
    return max(min(wanted, num_tokens // (min_tokens or min_tokens_per_split(gpu.capability)), MAX_SPLITS), 1)


def choose_num_ragged_splits(
    num_programs: int, num_tokens: int, gpu: DeviceInfo, *, min_tokens: int | None = None
) -> int:
    """Return the spans per row if most rows may be absent and one may be long: programs of absent rows end at once."""
    wanted = MAX_RAGGED_PROGRAMS // num_programs
    return max(min(wanted, num_tokens // (min_tokens or min_tokens_per_split(gpu.capability)), MAX_SPLITS), 1)


@triton.jit
def _span(seq_len, split, num_splits, min_tokens, WINDOW: tl.constexpr, BLOCK_N: tl.constexpr):
    """Return (oldest visible position, begin, end) of one split: visible tiles are distributed evenly.

    The last spans may be empty, more of them if the row has too few tokens for `min_tokens` in every span.
    """
    oldest = tl.maximum(seq_len - WINDOW, 0) if WINDOW else 0
    first_tile = oldest // BLOCK_N
    num_tiles = (seq_len + BLOCK_N - 1) // BLOCK_N - first_tile
    tiles_per_split = tl.maximum((num_tiles + num_splits - 1) // num_splits, min_tokens // BLOCK_N)
    begin = (first_tile + split * tiles_per_split) * BLOCK_N
    return oldest, begin, tl.minimum(begin + tiles_per_split * BLOCK_N, seq_len)


@triton.jit(
    do_not_specialize=["table_stride", "min_tokens"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr", "tables_ptr"],
)
def _decode(
    q_ptr, k_ptr, v_ptr, kv_scales_ptr, sinks_ptr, out_ptr, lse_ptr, query_start_loc_ptr, seq_lens_ptr, tables_ptr,
    table_stride, min_tokens, scale_log2, inner_scale, q_token_stride, q_head_stride, block_stride, kv_head_stride,
    slot_stride,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, IS_SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    FP8: tl.constexpr, RAGGED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write out [rows, Hq, splits, D], the softmax of a span alone, and lse [rows, Hq, splits], its log2 Σ exp2.

    RAGGED: skip rows whose query length is not 1. Without splits, out is [tokens, Hq, D].
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    # The number of splits is not a constexpr: it changes with the batch, and no step should wait for the compiler.
    row, kv_head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    num_splits = tl.num_programs(2)
    token = row
    if RAGGED:
        token = tl.load(query_start_loc_ptr + row).to(tl.int64)
        if tl.load(query_start_loc_ptr + row + 1) != token + 1:
            return
    oldest, begin, end = _span(tl.load(seq_lens_ptr + row), split, num_splits, min_tokens, WINDOW, BLOCK_N)
    members, dims = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    heads = kv_head * GROUP + members
    inside = (members < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    places = ((row if IS_SPLIT else token) * tl.num_programs(1) * GROUP + heads) * num_splits + split
    out_ptrs = out_ptr + places[:, None] * HEAD_DIM + dims[None, :]
    if begin >= end:
        if not IS_SPLIT:
            tl.store(out_ptrs, tl.full([BLOCK_M, BLOCK_D], 0.0, out_ptr.dtype.element_ty), mask=inside)
        return
    q_ptrs = q_ptr + token * q_token_stride + heads[:, None] * q_head_stride + dims[None, :]
    q = tl.load(q_ptrs, mask=inside, other=0.0)
    if FP8:
        q = q.to(tl.float16)
    scale_log2, inner_scale, v_scale = scales_of_head(
        kv_scales_ptr, kv_head, tl.num_programs(1), scale_log2, inner_scale, CAPPED
    )
    head_offset = kv_head.to(tl.int64) * kv_head_stride
    table_ptr = tables_ptr + row * table_stride
    maximum, total = first_state(sinks_ptr, heads, members < GROUP, split == 0, BLOCK_M)
    out = tl.full([BLOCK_M, BLOCK_D], 0.0, tl.float32)
    blocks = load_blocks(table_ptr, begin + tl.arange(0, BLOCK_N), oldest, end - 1, BLOCK_SIZE)
    for start in range(begin, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        readable = (keys >= oldest) & (keys < end)
        k, v = load_tile(
            k_ptr + head_offset, v_ptr + head_offset, blocks, keys, readable, block_stride, slot_stride,
            HEAD_DIM, BLOCK_D, BLOCK_SIZE, True, FP8,
        )  # fmt: skip
        blocks = load_blocks(table_ptr, keys + BLOCK_N, oldest, end - 1, BLOCK_SIZE)
        maximum, total, out = attend(
            q, k, v, readable[None, :], maximum, total, out, scale_log2, inner_scale, True, CAPPED
        )
    tl.store(out_ptrs, (out * (v_scale / total)[:, None]).to(out_ptr.dtype.element_ty), mask=inside)
    if IS_SPLIT:
        tl.store(lse_ptr + places, maximum + tl.log2(total), mask=members < GROUP)


@triton.jit(
    do_not_specialize=["num_splits", "min_tokens"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr"],
)
def _merge_splits(
    partial_ptr, lse_ptr, out_ptr, query_start_loc_ptr, seq_lens_ptr, num_splits, min_tokens, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, WINDOW: tl.constexpr, BLOCK_SPLITS: tl.constexpr, BLOCK_N: tl.constexpr,
    RAGGED: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out [tokens, Hq, D] = Σ partial · 2^lse / Σ 2^lse over the splits that are not empty (empty ones wrote nothing).

    The maximum is kept finite and the sum above 0, so that a row without tokens gets zeros, not NaN.
    """
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = row
    if RAGGED:
        token = tl.load(query_start_loc_ptr + row).to(tl.int64)
        if tl.load(query_start_loc_ptr + row + 1) != token + 1:
            return
    splits, dims = tl.arange(0, BLOCK_SPLITS), tl.arange(0, BLOCK_D)
    _, begin, end = _span(tl.load(seq_lens_ptr + row), splits, num_splits, min_tokens, WINDOW, BLOCK_N)
    live = begin < end
    place = row * tl.num_programs(1) + head
    lse = tl.load(lse_ptr + place * num_splits + splits, mask=live, other=float("-inf"))
    weights = tl.exp2(lse - tl.maximum(tl.max(lse, axis=0), -1e30))
    weights = weights / tl.maximum(tl.sum(weights, axis=0), 1e-30)
    partial = tl.load(
        partial_ptr + (place * num_splits + splits)[:, None] * HEAD_DIM + dims[None, :],
        mask=live[:, None] & (dims < HEAD_DIM)[None, :],
        other=0.0,
    )
    out = tl.sum(partial * weights[:, None], axis=0)
    out_ptrs = out_ptr + (token * tl.num_programs(1) + head) * HEAD_DIM + dims
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)


def decode_attention(
    q: Tensor,
    cache: CacheView,
    ragged: RaggedBatch,
    args: AttentionArgs,
    out: Tensor,
    *,
    num_splits: int | None = None,
    min_tokens: int | None = None,
    config: Config | None = None,
) -> None:
    """Write out[:num_decodes]: attention of rows [0, num_decodes), whose query tokens are q[:num_decodes].

    If num_decodes is None, rows of one query token are computed, at their token's place. q and contiguous out
    [T, Hq, D]. Options that are None are chosen. A row of 0 tokens, which pads a graph, gets zeros.
    """
    check_paged(q, cache, ragged, args)
    k_cache, v_cache, kv_scales = cache
    assert out.is_contiguous()
    is_ragged, (num_heads, head_dim) = ragged.num_decodes is None, q.shape[1:]
    num_rows = len(ragged.seq_lens) if ragged.num_decodes is None else ragged.num_decodes
    num_kv_heads, block_size = k_cache.shape[1:3]
    group, gpu = num_heads // num_kv_heads, device_info(q.device)
    config = config or choose_config(group, head_dim, k_cache.element_size(), gpu)
    min_tokens = min_tokens or min_tokens_per_split(gpu.capability)
    if num_splits is None:
        num_tokens = min(ragged.max_seq_len, args.sliding_window or ragged.max_seq_len)
        choose = choose_num_ragged_splits if is_ragged else choose_num_splits
        num_splits = choose(num_rows * num_kv_heads, num_tokens, gpu, min_tokens=min_tokens)
    assert num_splits <= MAX_SPLITS
    partial = lse = out
    if num_splits > 1:
        partial = torch.empty((num_rows, num_heads, num_splits, head_dim), dtype=torch.float32, device=q.device)
        lse = torch.empty(partial.shape[:3], dtype=torch.float32, device=q.device)
    shape = {
        "HEAD_DIM": head_dim, "BLOCK_D": max(triton.next_power_of_2(head_dim), 16), "WINDOW": args.sliding_window,
        "RAGGED": is_ragged, **dependent_launch(gpu),
    }  # fmt: skip
    _decode[(num_rows, num_kv_heads, num_splits)](
        q, as_loaded(k_cache), as_loaded(v_cache), kv_scales, args.sinks, partial, lse, ragged.query_start_loc,
        ragged.seq_lens, ragged.block_tables, ragged.block_tables.stride(0), min_tokens, *score_scales(args),
        *q.stride()[:2], *k_cache.stride()[:3],
        GROUP=group, BLOCK_SIZE=block_size, CAPPED=args.softcap > 0, IS_SPLIT=num_splits > 1,
        FP8=fp8_kind(k_cache, gpu), maxnreg=MAX_REGISTERS if k_cache.element_size() == 1 else None, **shape,
        **config._asdict(),
    )  # fmt: skip
    if num_splits > 1:
        _merge_splits[(num_rows, num_heads)](
            partial, lse, out, ragged.query_start_loc, ragged.seq_lens, num_splits, min_tokens, BLOCK_SPLITS=MAX_SPLITS,
            BLOCK_N=config.BLOCK_N, num_warps=4, **shape,
        )  # fmt: skip
