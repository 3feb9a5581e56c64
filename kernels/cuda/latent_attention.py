# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Attention over a latent cache: all heads read one line [latent | rotated key] a token, whose latent is the value too.

One program computes BLOCK_M (token, head) pairs of one row over one of `num_splits` spans of its keys (flash-decoding:
Dao et al. 2023); a second kernel merges the spans. A line of 512 + 64 numbers fits no tile of a power of two, so
its two parts are loaded and multiplied apart, and the latents that were loaded as keys are the values. For BLOCK_M
pairs, a row of L tokens reads 2·(R + r)·L bytes in 16 bits and takes 2·(2·R + r)·L·BLOCK_M operations: some 60 a byte
with 32 pairs (DeepSeek-AI 2024, V2). Untuned on a GPU.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..arguments import AttentionArgs, CacheView, RaggedBatch
from .attention_common import Config, as_loaded, fp8_kind, load_blocks, row_of, score_scales, widen
from .attention_decode import PROGRAMS_PER_MULTIPROCESSOR
from .dependent import wait_for_previous
from .device_info import DeviceInfo, dependent_launch, device_info
from .tile_configs import min_tokens_per_split

MAX_SPLITS = 64
# Programs of a mixed step's graph, which has the largest number of rows: 4 spans for each of 257 rows, 15 for 65.
# Untuned.
_MAX_RAGGED_PROGRAMS = 8224


def choose_config(max_pairs: int, element_size: int, cache_size: int, gpu: DeviceInfo) -> Config:
    """Choose the tile for rows of at most this many (token, head) pairs; sizes are bytes of an element.

    From the compiler's report (tests/gpu/compile_report.py): nothing spills. 32 x 32 takes 74 KiB of shared memory and
    186 registers of compute capability 9.0, 16 x 16 takes 37 KiB; 4 warps, and 32 rows over e4m3, spill.
    """
    if element_size > 2:
        return Config(16, 16, 8, 1)  # float32 has no tensor cores to fill: this compiles fast
    if max_pairs <= 16 or cache_size == 1:
        return Config(16, 16, 8, 2)
    return Config(32, 32 if gpu.shared_memory > 160_000 else 16, 8, 2)


def choose_num_splits(num_programs: int, num_tokens: int, gpu: DeviceInfo, *, min_tokens: int, is_ragged: bool) -> int:
    """Return the spans per row: enough to fill the GPU, at most as many as the longest row, `num_tokens`, may need.

    `is_ragged`: most rows may be absent, and one may be long; programs of absent rows end at once.
    """
    wanted = _MAX_RAGGED_PROGRAMS if is_ragged else PROGRAMS_PER_MULTIPROCESSOR * gpu.num_multiprocessors
    return max(min(wanted // num_programs, num_tokens // min_tokens, MAX_SPLITS), 1)


@triton.jit
def _span(seq_len, split, num_splits, min_tokens, BLOCK_N: tl.constexpr):
    """Return (begin, end) of one split: tiles are distributed evenly.

    The last spans may be empty, more of them if the row has too few tokens for `min_tokens` in every span.
    """
    num_tiles = (seq_len + BLOCK_N - 1) // BLOCK_N
    tiles_per_split = tl.maximum((num_tiles + num_splits - 1) // num_splits, min_tokens // BLOCK_N)
    begin = split * tiles_per_split * BLOCK_N
    return begin, tl.minimum(begin + tiles_per_split * BLOCK_N, seq_len)


@triton.jit(
    do_not_specialize=["table_stride", "min_tokens", "first_row", "num_rows", "num_heads"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr", "tables_ptr"],
)
def _latent_attention(
    q_ptr, cache_ptr, out_ptr, lse_ptr, query_start_loc_ptr, seq_lens_ptr, tables_ptr, table_stride, first_row,
    num_rows, num_heads, min_tokens, scale_log2, q_token_stride, q_head_stride, block_stride, slot_stride,
    RANK: tl.constexpr, ROTARY: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ONE_QUERY: tl.constexpr, IS_SPLIT: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FP8: tl.constexpr,
):  # fmt: skip
    """Write out [tokens, Hq, RANK], or with splits out [rows, Hq, splits, RANK] and lse [rows, Hq, splits].

    ONE_QUERY: only rows of one query token are computed; else only the others.
    """
    row, tile, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    num_splits = tl.num_programs(2)
    if not ONE_QUERY:  # a row's last tiles see the most keys, so they run first
        tile = tl.num_programs(0) - 1 - row
        row, row_begin = row_of(query_start_loc_ptr, tile, first_row, num_rows, num_heads, BLOCK_M)
        tile -= row_begin
    row = row.to(tl.int64)
    first_token = tl.load(query_start_loc_ptr + row).to(tl.int64)
    query_len = (tl.load(query_start_loc_ptr + row + 1) - first_token).to(tl.int32)
    first_pair = tile * BLOCK_M
    if (query_len == 1) != ONE_QUERY:
        return
    if first_pair >= query_len * num_heads:
        return
    pairs = first_pair + tl.arange(0, BLOCK_M)
    tokens, heads = pairs // num_heads, pairs % num_heads
    inside = pairs < query_len * num_heads
    seq_len = tl.load(seq_lens_ptr + row)
    context = seq_len - query_len
    last_token = tl.minimum((first_pair + BLOCK_M - 1) // num_heads, query_len - 1)
    length = tl.minimum(context + last_token + 1, seq_len)  # keys that the tile's last query sees
    begin, end = _span(length, split, num_splits, min_tokens, BLOCK_N)
    ranks, turns = tl.arange(0, BLOCK_R), tl.arange(0, BLOCK_T)
    places = (first_token + tokens) * num_heads + heads
    if IS_SPLIT:
        places = (row * num_heads + heads) * num_splits + split
    in_rank, in_turn = (ranks < RANK)[None, :], (turns < ROTARY)[None, :]
    out_ptrs, stored = out_ptr + places[:, None] * RANK + ranks[None, :], inside[:, None] & in_rank
    if begin >= end:
        if not IS_SPLIT:
            tl.store(out_ptrs, tl.full([BLOCK_M, BLOCK_R], 0.0, out_ptr.dtype.element_ty), mask=stored)
        return
    q_ptrs = q_ptr + ((first_token + tokens) * q_token_stride + heads * q_head_stride)[:, None]
    q_latent = tl.load(q_ptrs + ranks[None, :], mask=stored, other=0.0)
    q_turned = tl.load(q_ptrs + RANK + turns[None, :], mask=inside[:, None] & in_turn, other=0.0)
    if FP8:
        q_latent, q_turned = q_latent.to(tl.float16), q_turned.to(tl.float16)
    table_ptr = tables_ptr + row * table_stride
    positions = context + tokens
    maximum, total = tl.full([BLOCK_M], -1e30, tl.float32), tl.full([BLOCK_M], 0.0, tl.float32)
    out = tl.full([BLOCK_M, BLOCK_R], 0.0, tl.float32)
    blocks = load_blocks(table_ptr, begin + tl.arange(0, BLOCK_N), 0, end - 1, BLOCK_SIZE)
    for start in range(begin, end, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        readable = keys < end
        lines = cache_ptr + (blocks.to(tl.int64) * block_stride + keys % BLOCK_SIZE * slot_stride)[:, None]
        latents = widen(tl.load(lines + ranks[None, :], mask=readable[:, None] & in_rank, other=0), FP8)
        turned = widen(tl.load(lines + RANK + turns[None, :], mask=readable[:, None] & in_turn, other=0), FP8)
        blocks = load_blocks(table_ptr, keys + BLOCK_N, 0, end - 1, BLOCK_SIZE)
        scores = tl.dot(q_turned, tl.trans(turned), input_precision="ieee")
        scores = tl.dot(q_latent, tl.trans(latents), scores, input_precision="ieee") * scale_log2
        visible = readable[None, :] & (keys[None, :] <= positions[:, None])
        scores = tl.where(visible, scores, float("-inf"))
        new_maximum = tl.maximum(maximum, tl.max(scores, axis=1))
        probabilities = tl.exp2(scores - new_maximum[:, None])
        shrink = tl.exp2(maximum - new_maximum)
        total = total * shrink + tl.sum(probabilities, axis=1)
        out = tl.dot(probabilities.to(latents.dtype), latents, out * shrink[:, None], input_precision="ieee")
        maximum = new_maximum
    total = tl.maximum(total, 1e-30)
    tl.store(out_ptrs, (out / total[:, None]).to(out_ptr.dtype.element_ty), mask=stored)
    if IS_SPLIT:
        tl.store(lse_ptr + places, maximum + tl.log2(total), mask=inside)


@triton.jit(
    do_not_specialize=["num_splits", "min_tokens"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr"],
)
def _merge_splits(
    partial_ptr, lse_ptr, out_ptr, query_start_loc_ptr, seq_lens_ptr, num_splits, min_tokens, HEAD_DIM: tl.constexpr,
    BLOCK_D: tl.constexpr, BLOCK_SPLITS: tl.constexpr, BLOCK_N: tl.constexpr, RAGGED: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """out [tokens, Hq, D] = Σ partial · 2^lse / Σ 2^lse over the splits that are not empty (empty ones wrote nothing).

    The maximum is kept finite and the sum above 0, so that a row without tokens gets zeros, not NaN.
    """
    wait_for_previous(DEPENDENT)
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    token = row
    if RAGGED:
        token = tl.load(query_start_loc_ptr + row).to(tl.int64)
        if tl.load(query_start_loc_ptr + row + 1) != token + 1:
            return
    splits, dims = tl.arange(0, BLOCK_SPLITS), tl.arange(0, BLOCK_D)
    begin, end = _span(tl.load(seq_lens_ptr + row), splits, num_splits, min_tokens, BLOCK_N)
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


def latent_attention(
    q: Tensor,
    cache: CacheView,
    ragged: RaggedBatch,
    args: AttentionArgs,
    *,
    num_splits: int | None = None,
    min_tokens: int | None = None,
) -> Tensor:
    """Like ops.paged_attention with `args.value_dim` → [T, Hq, value_dim]. Options that are None are chosen."""
    _check(q, cache, ragged, args)
    out = torch.empty(*q.shape[:2], args.value_dim, dtype=q.dtype, device=q.device)
    num_rows, num_decodes = len(ragged.seq_lens), ragged.num_decodes
    gpu = device_info(q.device)
    min_tokens = min_tokens or min_tokens_per_split(gpu.capability)
    if num_decodes is None or num_decodes:
        rows = num_rows if num_decodes is None else num_decodes
        config = choose_config(q.shape[1], q.element_size(), cache.keys.element_size(), gpu)
        if num_splits is None:
            num_programs, is_ragged = rows * triton.cdiv(q.shape[1], config.BLOCK_M), num_decodes is None
            num_splits = choose_num_splits(
                num_programs, ragged.max_seq_len, gpu, min_tokens=min_tokens, is_ragged=is_ragged
            )
        assert num_splits <= MAX_SPLITS
        _decode(q, cache, ragged, args, out, rows, num_splits, min_tokens, config)
    if num_decodes is None or num_rows > num_decodes:
        max_pairs = ragged.max_query_len * q.shape[1]
        config = choose_config(max_pairs, q.element_size(), cache.keys.element_size(), gpu)
        first = num_decodes or 0
        # Upper bound of the number of tiles, known without reading the rows' lengths from the GPU.
        tiles = (len(q) - first) * q.shape[1] // config.BLOCK_M + num_rows - first
        _launch((tiles, 1, 1), q, cache, ragged, args, out, out, first, 0, config, ONE_QUERY=False)
    return out


def _decode(
    q: Tensor,
    cache: CacheView,
    ragged: RaggedBatch,
    args: AttentionArgs,
    out: Tensor,
    num_rows: int,
    num_splits: int,
    min_tokens: int,
    config: Config,
) -> None:
    """Compute rows of one query token, in spans if there are several."""
    num_heads = q.shape[1]
    partial = lse = out
    if num_splits > 1:
        partial = torch.empty((num_rows, num_heads, num_splits, args.value_dim), dtype=torch.float32, device=q.device)
        lse = torch.empty(partial.shape[:3], dtype=torch.float32, device=q.device)
    grid = (num_rows, triton.cdiv(num_heads, config.BLOCK_M), num_splits)
    _launch(grid, q, cache, ragged, args, partial, lse, 0, min_tokens, config, ONE_QUERY=True)
    if num_splits > 1:
        _merge(partial, lse, out, ragged, min_tokens=min_tokens, keys_per_step=config.BLOCK_N)


def _merge(
    partial: Tensor, lse: Tensor, out: Tensor, ragged: RaggedBatch, *, min_tokens: int, keys_per_step: int
) -> None:
    """Merge the spans of rows of one query token: partial [rows, Hq, splits, D] and lse into out [T, Hq, D]."""
    num_rows, num_heads, num_splits, head_dim = partial.shape
    launch = dependent_launch(device_info(out.device))
    _merge_splits[(num_rows, num_heads)](
        partial, lse, out, ragged.query_start_loc, ragged.seq_lens, num_splits, min_tokens, HEAD_DIM=head_dim,
        BLOCK_D=max(triton.next_power_of_2(head_dim), 16), BLOCK_SPLITS=MAX_SPLITS, BLOCK_N=keys_per_step,
        RAGGED=ragged.num_decodes is None, num_warps=4, **launch,
    )  # fmt: skip


def _launch(
    grid: tuple[int, int, int],
    q: Tensor,
    cache: CacheView,
    ragged: RaggedBatch,
    args: AttentionArgs,
    out: Tensor,
    lse: Tensor,
    first_row: int,
    min_tokens: int,
    config: Config,
    *,
    ONE_QUERY: bool,
) -> None:
    rank, lines = args.value_dim, cache.keys
    rotary = q.shape[2] - rank
    _latent_attention[grid](
        q, as_loaded(lines), out, lse, ragged.query_start_loc, ragged.seq_lens, ragged.block_tables,
        ragged.block_tables.stride(0), first_row, len(ragged.seq_lens) - first_row, q.shape[1], min_tokens,
        score_scales(args)[0], *q.stride()[:2], lines.stride(0), lines.stride(2),
        RANK=rank, ROTARY=rotary, BLOCK_R=max(triton.next_power_of_2(rank), 16),
        BLOCK_T=max(triton.next_power_of_2(rotary), 16), BLOCK_SIZE=lines.shape[2], ONE_QUERY=ONE_QUERY,
        IS_SPLIT=grid[2] > 1, FP8=fp8_kind(lines, device_info(q.device)), **config._asdict(),
    )  # fmt: skip


def _check(q: Tensor, cache: CacheView, ragged: RaggedBatch, args: AttentionArgs) -> None:
    lines = cache.keys
    assert lines.shape[1] == 1
    assert lines.shape[3] == q.shape[2] > args.value_dim
    assert lines.dtype in (q.dtype, torch.float8_e4m3fn)
    assert q.stride(2) == ragged.block_tables.stride(1) == lines.stride(3) == 1
    assert cache.scales is None
    assert args.scale > 0
    assert args == AttentionArgs(args.scale, value_dim=args.value_dim)
