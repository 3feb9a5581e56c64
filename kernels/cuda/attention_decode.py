# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Paged attention of one query token per row: softmax(q kᵀ · scale) v over the row's cached tokens.

The host deals the keys of all rows to a fixed number of programs for each KV head, by their bytes
(decode_plan.py), so no program waits for a long row. The query heads that share a KV head are the rows of a
program's dot, padded to the 16 that a tensor core needs. A row of several pieces is merged by a second kernel
(flash-decoding: Dao et al. 2023; work lists: Ye et al. 2025, FlashInfer; pages: Kwon et al. 2023, PagedAttention). The
grid depends on the number of rows and heads alone and the plan is read from device memory, so a CUDA graph serves every
length.
A row and KV head read 4·L·D bytes of keys and values in 16 bits for 4·L·D·group operations: `group` operations per
byte, so bound by memory. A cache in e4m3 takes half the bytes; its dots are in float16. A piece of a merged row writes
and reads another 8·Hq·D bytes.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
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
    scales_of_head,
    score_scales,
)
from .decode_plan import MERGE_FIELDS, PIECE_FIELDS, Array, Spans, plan_decode
from .dependent import wait_for_previous
from .device_info import DeviceInfo, dependent_launch, device_info
from .tile_configs import measured, min_tokens_per_split

# Programs per multiprocessor that keep its memory queue full. H100, 2026-11-27, us of 32 x 4096, 256 x 1024, 8 x 1024,
# 1 x 16384: 2 programs 191, 384, 19, 33; 3 189, 373, 21, 36; 4 191, 378, 21, 36; 6 193, 379, 29, 56.
PROGRAMS_PER_MULTIPROCESSOR = 3
# Of a thread over a cache of e4m3, so that three programs of 4 warps fit.
MAX_REGISTERS = 168
# Pieces beyond one per row and program for which a graph has room in exact mode: 73 MiB for 32 heads of 128, and keys
# of a million tokens in spans of 256. A step that needs more runs without a graph.
MAX_EXACT_PIECES = 4096
_BLOCK_SLOTS = tl.constexpr(8)


def choose_config(group: int, head_dim: int, element_size: int, gpu: DeviceInfo) -> Config:
    """Choose the tile: measured if possible, else after 16 rows, 32 keys, 4 warps, 4 stages at head size 128.

    That tile won on an H100 among 540 configurations (IBM, arXiv 2511.11581). Other head sizes keep its 16 KiB of keys
    and values a step. Three steps, two of e4m3, are in flight in 53 KiB of shared memory (57 at head size 256): three
    programs share a multiprocessor of an H100, and one fits any GPU since Ampere.
    """
    block_m, block_d = max(triton.next_power_of_2(group), 16), max(triton.next_power_of_2(head_dim), 16)
    if tile := measured("decode", gpu.capability, head_dim, element_size):
        return Config(*tile)._replace(BLOCK_M=block_m)
    keys = 8192 // (block_d * element_size)
    if element_size == 1:
        return Config(block_m, min(max(keys, 16), 128), 4, 3)  # v in float16 takes another 16 KiB
    return Config(block_m, min(max(keys, 16), 64), 4, 4)


def exact_config(head_dim: int, element_size: int, gpu: DeviceInfo) -> Config:
    """Return the tile of decodes and prompts alike in exact mode: keys in equal steps, dots by one instruction.

    wgmma takes 64 rows, so there decodes pay for 64: 64 operations per byte of keys, where an H200 has some 180.
    """
    if element_size > 2:
        return Config(16, 16, 4, 1)
    is_large, is_strong = head_dim > 128, gpu.has_strong_cores
    return Config(64 if is_strong else 16, 64 if is_strong and not is_large else 32, 4, 2 if is_large else 3)


def choose_num_programs(num_kv_heads: int, gpu: DeviceInfo) -> int:
    """Return the programs of a KV head."""
    return max(PROGRAMS_PER_MULTIPROCESSOR * gpu.num_multiprocessors // num_kv_heads, 1)


class PlanKind(NamedTuple):
    """Attention layers that share a work list."""

    window: int
    num_programs: int  # for each KV head
    tile: int  # keys of a step

    @property
    def name(self) -> str:
        """Name of the list among a step's arrays."""
        return f"plan_{self.window}_{self.num_programs}_{self.tile}"


class DecodePlanner(NamedTuple):
    """Maker of the work lists of a step."""

    kinds: Sequence[PlanKind]
    min_tokens: int
    spans: Spans | None = None

    def __call__(self, query_start_loc: Array, seq_lens: Array, *, is_fixed: bool = True) -> dict[str, Array] | None:
        """Return a packed plan of each kind by its name, of a size that the number of rows alone decides if `is_fixed`.

        None if a plan needs more than that.
        """
        num_rows, packed = len(seq_lens), {}
        for kind in self.kinds:
            plan = plan_decode(
                query_start_loc, seq_lens, num_programs=kind.num_programs, tile=kind.tile, min_tokens=self.min_tokens,
                window=kind.window, spans=self.spans,
            )  # fmt: skip
            num_pieces = len(plan.pieces)
            if is_fixed or self.spans is None:
                num_pieces = num_rows + kind.num_programs + (0 if self.spans is None else MAX_EXACT_PIECES)
            if len(plan.pieces) > num_pieces:
                return None
            packed[kind.name] = plan.packed(num_pieces=num_pieces, num_rows=num_rows)
        return packed


def decode_planner(
    device: torch.device, layers: Iterable[tuple[int, int, int]], *, dtype: torch.dtype, cache_dtype: torch.dtype
) -> DecodePlanner:
    """Return the planner for layers (sliding window, KV heads, head size) on this GPU."""
    gpu, kinds = device_info(device), dict[PlanKind, None]()
    for window, num_kv_heads, head_dim in layers:
        config = choose_config(1, head_dim, cache_dtype.itemsize, gpu)
        if settings.EXACT.is_on:
            config = exact_config(head_dim, dtype.itemsize, gpu)
        kinds[PlanKind(window, choose_num_programs(num_kv_heads, gpu), config.BLOCK_N)] = None
    return DecodePlanner(tuple(kinds), min_tokens_per_split(gpu.capability), _spans())


def _spans() -> Spans | None:
    return decode_plan.SPANS if settings.EXACT.is_on else None


@triton.jit(
    do_not_specialize=["table_stride"],
    do_not_specialize_on_alignment=["query_start_loc_ptr", "seq_lens_ptr", "tables_ptr", "plan_ptr"],
)
def _decode(
    q_ptr, k_ptr, v_ptr, kv_scales_ptr, sinks_ptr, out_ptr, partial_ptr, state_ptr, query_start_loc_ptr, seq_lens_ptr,
    tables_ptr, plan_ptr, table_stride, scale_log2, inner_scale, q_token_stride, q_head_stride, block_stride,
    kv_head_stride, slot_stride,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, GROUP: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    WINDOW: tl.constexpr, CAPPED: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, FP8: tl.constexpr,
    EXACT: tl.constexpr,
):  # fmt: skip
    """Write out [tokens, Hq, D] of rows of one piece. Other pieces write their state: partial [slots, Hq, D], the sum
    of weighted values, and state [slots, Hq, 2], its maximum and total."""
    program, kv_head, num_kv_heads = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    members, dims = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    heads = kv_head * GROUP + members
    inside = (members < GROUP)[:, None] & (dims < HEAD_DIM)[None, :]
    scale_log2, inner_scale, v_scale = scales_of_head(
        kv_scales_ptr, kv_head, num_kv_heads, scale_log2, inner_scale, CAPPED
    )
    k_ptr += kv_head.to(tl.int64) * kv_head_stride
    v_ptr += kv_head.to(tl.int64) * kv_head_stride
    pieces_ptr = plan_ptr + tl.num_programs(0) + 1
    for piece in range(tl.load(plan_ptr + program), tl.load(plan_ptr + program + 1)):
        row = tl.load(pieces_ptr + 4 * piece).to(tl.int64)
        begin, end = tl.load(pieces_ptr + 4 * piece + 1), tl.load(pieces_ptr + 4 * piece + 2)
        slot = tl.load(pieces_ptr + 4 * piece + 3)
        token = tl.load(query_start_loc_ptr + row).to(tl.int64)
        oldest = tl.maximum(tl.load(seq_lens_ptr + row) - WINDOW, 0) if WINDOW else 0
        q_ptrs = q_ptr + token * q_token_stride + heads[:, None] * q_head_stride + dims[None, :]
        q = tl.load(q_ptrs, mask=inside, other=0.0)
        if FP8:
            q = q.to(tl.float16)
        table_ptr = tables_ptr + row * table_stride
        maximum, total, out = no_state(BLOCK_M, BLOCK_D)
        blocks = load_blocks(table_ptr, begin + tl.arange(0, BLOCK_N), oldest, end - 1, BLOCK_SIZE)
        for start in range(begin, end, BLOCK_N):
            keys = start + tl.arange(0, BLOCK_N)
            readable = (keys >= oldest) & (keys < end)
            k, v = load_tile(
                k_ptr, v_ptr, blocks, keys, readable, block_stride, slot_stride, HEAD_DIM, BLOCK_D, BLOCK_SIZE, True,
                FP8,
            )  # fmt: skip
            blocks = load_blocks(table_ptr, keys + BLOCK_N, oldest, end - 1, BLOCK_SIZE)
            maximum, total, out = attend(
                q, k, v, readable[None, :], maximum, total, out, scale_log2, inner_scale, True, CAPPED, EXACT
            )
        if slot < 0:
            before = first_state(sinks_ptr, heads, members < GROUP, BLOCK_M, BLOCK_D)
            _, total, out = fold(before[0], before[1], before[2], maximum, total, out)
            out_ptrs = out_ptr + (token * num_kv_heads * GROUP + heads)[:, None] * HEAD_DIM + dims[None, :]
            # A row's total is at least 1; the total of a row of 0 tokens, which pads a graph, is 0.
            out = out * (v_scale / tl.maximum(total, 1e-30))[:, None]
            tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=inside)
        else:
            places = slot.to(tl.int64) * num_kv_heads * GROUP + heads
            tl.store(partial_ptr + places[:, None] * HEAD_DIM + dims[None, :], out, mask=inside)
            tl.store(state_ptr + 2 * places, maximum, mask=members < GROUP)
            tl.store(state_ptr + 2 * places + 1, total, mask=members < GROUP)


@triton.jit(do_not_specialize=["first_merge"], do_not_specialize_on_alignment=["query_start_loc_ptr", "plan_ptr"])
def _merge_pieces(
    partial_ptr, state_ptr, kv_scales_ptr, sinks_ptr, out_ptr, query_start_loc_ptr, plan_ptr, first_merge,
    HEAD_DIM: tl.constexpr, BLOCK_D: tl.constexpr, GROUP: tl.constexpr, EXACT: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write out [tokens, Hq, D] of a row of several pieces; EXACT: the pieces are added one after the other."""
    wait_for_previous(DEPENDENT)
    merge_ptr, head, num_heads = plan_ptr + first_merge + 3 * tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    row = tl.load(merge_ptr).to(tl.int64)
    if row < 0:
        return
    first, end = tl.load(merge_ptr + 1), tl.load(merge_ptr + 2)
    slots, dims = tl.arange(0, _BLOCK_SLOTS), tl.arange(0, BLOCK_D)
    maximum, total, out = first_state(sinks_ptr, head + tl.arange(0, 1), True, 1, BLOCK_D)
    for start in range(first, end, _BLOCK_SLOTS):
        places = (start + slots).to(tl.int64) * num_heads + head
        live = start + slots < end
        partial = tl.load(
            partial_ptr + places[:, None] * HEAD_DIM + dims[None, :],
            mask=live[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        maxima = tl.load(state_ptr + 2 * places, mask=live, other=-1e30)
        totals = tl.load(state_ptr + 2 * places + 1, mask=live, other=0.0)
        if EXACT:
            for i in tl.static_range(_BLOCK_SLOTS):
                is_next = slots == i
                one_maximum = tl.max(tl.where(is_next, maxima, -1e30), axis=0)
                one_total = tl.sum(tl.where(is_next, totals, 0.0), axis=0)
                one_out = tl.sum(tl.where(is_next[:, None], partial, 0.0), axis=0)
                maximum, total, out = fold(maximum, total, out, one_maximum, one_total, one_out[None, :])
        else:
            largest = tl.max(maxima, axis=0)
            weights = tl.exp2(maxima - largest)
            block_out = tl.sum(partial * weights[:, None], axis=0)[None, :]
            maximum, total, out = fold(maximum, total, out, largest, tl.sum(totals * weights, axis=0), block_out)
    v_scale = 1.0
    if kv_scales_ptr is not None:
        v_scale = tl.load(kv_scales_ptr + num_heads // GROUP + head // GROUP)
    out = out * (v_scale / tl.maximum(total, 1e-30))[:, None]
    token = tl.load(query_start_loc_ptr + row).to(tl.int64)
    out_ptrs = out_ptr + (token * num_heads + head) * HEAD_DIM + dims[None, :]
    tl.store(out_ptrs, out.to(out_ptr.dtype.element_ty), mask=(dims < HEAD_DIM)[None, :])


def decode_attention(
    q: Tensor,
    cache: CacheView,
    ragged: RaggedBatch,
    args: AttentionArgs,
    out: Tensor,
    *,
    config: Config | None = None,
    num_programs: int | None = None,
    min_tokens: int | None = None,
) -> None:
    """Write out[:num_decodes]: attention of rows [0, num_decodes), whose query tokens are q[:num_decodes].

    If num_decodes is None, rows of one query token are computed, at their token's place. q and contiguous out
    [T, Hq, D]. Options that are None are chosen. A row of 0 tokens, which pads a graph, gets zeros.
    Without `ragged.plans`, the lengths are read from the GPU and planned for here.
    """
    check_paged(q, cache, ragged, args)
    k_cache, v_cache, kv_scales = cache
    assert out.is_contiguous()
    num_heads, head_dim = q.shape[1:]
    num_kv_heads, block_size = k_cache.shape[1:3]
    group, gpu, is_exact = num_heads // num_kv_heads, device_info(q.device), settings.EXACT.is_on
    if config is None and is_exact:
        config = exact_config(head_dim, q.element_size(), gpu)
        config = config._replace(BLOCK_M=max(config.BLOCK_M, triton.next_power_of_2(group)))
    config = config or choose_config(group, head_dim, k_cache.element_size(), gpu)
    kind = PlanKind(args.sliding_window, num_programs or choose_num_programs(num_kv_heads, gpu), config.BLOCK_N)
    if ragged.plans is None:
        planner = DecodePlanner((kind,), min_tokens or min_tokens_per_split(gpu.capability), _spans())
        plan = _plan_from_gpu(ragged, planner)
    else:
        plan = ragged.plans[kind.name]
    num_rows = len(ragged.seq_lens)
    first_merge = len(plan) - MERGE_FIELDS * num_rows
    num_slots = (first_merge - kind.num_programs - 1) // PIECE_FIELDS
    partial = torch.empty((num_slots, num_heads, head_dim), dtype=torch.float32, device=q.device)
    state = torch.empty((num_slots, num_heads, 2), dtype=torch.float32, device=q.device)
    shape = {
        "HEAD_DIM": head_dim, "BLOCK_D": max(triton.next_power_of_2(head_dim), 16), "GROUP": group, "EXACT": is_exact,
    }  # fmt: skip
    # AMD's compiler has no such option.
    registers = {"maxnreg": MAX_REGISTERS} if k_cache.element_size() == 1 and not (is_exact or gpu.is_amd) else {}
    # Not a dependent launch, perhaps since programs placed beside the kernel before share multiprocessors unevenly.
    # H100, 2026-11-27, Llama-3.1-8B's tokens/s at 8, 32 and 64 rows: 1,224 to 1,243, 3,893 to 3,964, 6,298 to 6,588.
    _decode[(kind.num_programs, num_kv_heads)](
        q, as_loaded(k_cache), as_loaded(v_cache), kv_scales, args.sinks, out, partial, state, ragged.query_start_loc,
        ragged.seq_lens, ragged.block_tables, plan, ragged.block_tables.stride(0), *score_scales(args),
        *q.stride()[:2], *k_cache.stride()[:3],
        BLOCK_SIZE=block_size, WINDOW=args.sliding_window, CAPPED=args.softcap > 0, FP8=fp8_kind(k_cache, gpu),
        **registers, **shape, **config._asdict(),
    )  # fmt: skip
    _merge_pieces[(num_rows, num_heads)](
        partial, state, kv_scales, args.sinks, out, ragged.query_start_loc, plan, first_merge, num_warps=4, **shape,
        **dependent_launch(gpu),
    )  # fmt: skip


def _plan_from_gpu(ragged: RaggedBatch, planner: DecodePlanner) -> Tensor:
    """Wait for the lengths and plan for them; for tests and benchmarks."""
    starts, lengths = (np.array(x.tolist()) for x in (ragged.query_start_loc, ragged.seq_lens))
    plans = planner(starts, lengths, is_fixed=False)
    assert plans is not None
    (plan,) = plans.values()
    return torch.from_numpy(plan).to(ragged.seq_lens.device)
