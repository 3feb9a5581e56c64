# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Routing of tokens to experts: softmax and the K largest per token, then the (token, k) pairs sorted by expert.

`route` reads 2·E bytes of logits per token, writes 8·K and takes about E·(K + 5) operations: hardly more than a launch.
`group_by_expert` is a counting sort whose counts stay on the GPU. Pair p = t·K + k. An expert's pairs fill whole tiles
of BLOCK_M slots, so that a tile of the matmul has one expert:

    slots    expert 0: p p p p | p p . .    expert 2: p . . .    ...      . = padding, holds num_pairs
    experts             0      |    0               2            ...      -1 -1 beyond the last
Each chunk of 1,024 pairs has E programs. They read the chunk's ids, 4·E·T·K bytes in all from the L2 cache, and the
counts of all chunks, which a first kernel writes; so nothing else of a program's work grows with the tokens. Few pairs
are not grouped: their own experts are the tiles' (`load_tile`), without a launch.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .dependent import wait_for_previous
from .device_info import dependent_launch, device_info


@triton.jit
def _route(
    logits_ptr, slots_ptr, weights_ptr, ids_ptr, logits_stride, NUM_EXPERTS: tl.constexpr, TOP_K: tl.constexpr,
    RENORMALIZE: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    wait_for_previous(DEPENDENT)
    token = tl.program_id(0).to(tl.int64)
    experts, ks = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_K)
    logits_ptrs = logits_ptr + token * logits_stride + experts
    logits = tl.load(logits_ptrs, mask=experts < NUM_EXPERTS, other=float("-inf")).to(tl.float32)
    left = tl.exp(logits - tl.max(logits, axis=0))
    left = left / tl.sum(left, axis=0)
    weights = tl.full([BLOCK_K], 0.0, tl.float32)
    ids = tl.full([BLOCK_K], 0, tl.int32)
    for k in tl.static_range(TOP_K):
        # Of NaN, argmax may return the padding, an expert that is not there.
        best = tl.minimum(tl.argmax(left, axis=0), NUM_EXPERTS - 1)
        weights = tl.where(ks == k, tl.max(left, axis=0), weights)
        ids = tl.where(ks == k, best, ids)
        left = tl.where(experts == best, -1.0, left)
    if RENORMALIZE:
        weights = weights / tl.sum(weights, axis=0)
    if slots_ptr is not None:
        ids = tl.where(tl.load(slots_ptr + token) < 0, -1, ids)
    tl.store(weights_ptr + token * TOP_K + ks, weights, mask=ks < TOP_K)
    tl.store(ids_ptr + token * TOP_K + ks, ids, mask=ks < TOP_K)


def route(
    router_logits: Tensor, *, top_k: int, renormalize: bool, slot_mapping: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """router_logits [T, E] with contiguous rows → (weights [T, K] float32, expert_ids [T, K] int32).

    slot_mapping [T] int64: a token of slot -1 gets experts -1.
    """
    num_tokens, num_experts = router_logits.shape
    assert 1 <= top_k <= num_experts
    assert router_logits.stride(1) == 1
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=router_logits.device)
    ids = torch.empty((num_tokens, top_k), dtype=torch.int32, device=router_logits.device)
    _route[(num_tokens,)](
        router_logits, slot_mapping, weights, ids, router_logits.stride(0),
        NUM_EXPERTS=num_experts,
        TOP_K=top_k,
        RENORMALIZE=renormalize,
        BLOCK_E=triton.next_power_of_2(num_experts),
        BLOCK_K=triton.next_power_of_2(top_k),
        num_warps=1,  # a row is a few numbers a thread
        **dependent_launch(device_info(router_logits.device)),
    )  # fmt: skip
    return weights, ids


class ExpertTiles(NamedTuple):
    """Pairs in tiles of BLOCK_M, a tile for one expert; only the GPU knows how many tiles are in use."""

    # [tiles · BLOCK_M] int32, num_pairs in the padding; unwritten in tiles without an expert. None: few pairs, each
    # with a tile of its own; an expert's first program handles all of its tiles
    pairs: Tensor | None
    experts: Tensor  # [tiles] int32, -1 in tiles without an expert, which come last
    num_pairs: int
    top_k: int
    num_experts: int

    def grid(self, num_outputs: int, block_n: int) -> tuple[int, int]:
        """Return a program for each tile and each block of an expert's outputs."""
        return len(self.experts), triton.cdiv(num_outputs, block_n)


@triton.jit
def load_tile(
    pairs_ptr, experts_ptr, num_pairs, TOP_K: tl.constexpr, BLOCK_K: tl.constexpr, BLOCK_M: tl.constexpr
):  # fmt: skip
    """Return (the expert of this program's tile, -1: nothing is to do; its pairs [BLOCK_M], padded by num_pairs)."""
    tile = tl.program_id(0)
    expert = tl.load(experts_ptr + tile)
    if pairs_ptr is None:
        ks = tl.arange(0, BLOCK_K)
        places = tl.arange(0, BLOCK_M)[:, None] * TOP_K + ks[None, :]  # a token's pairs are a row
        inside = (ks < TOP_K)[None, :] & (places < num_pairs)
        is_mine = tl.load(experts_ptr + places, mask=inside, other=-1) == expert
        pairs = tl.min(tl.where(is_mine, places, num_pairs), axis=1)
        expert = tl.where(tl.min(pairs, axis=0) < tile, -1, expert)
    else:
        pairs = tl.load(pairs_ptr + tile * BLOCK_M + tl.arange(0, BLOCK_M))
    return expert.to(tl.int64), pairs


# Pairs of a chunk, which a program reads at once, and chunks whose counts it reads at once. Untuned.
BLOCK_P, BLOCK_C = 1024, 16


@triton.jit(do_not_specialize=["num_pairs"])
def _count_pairs(
    ids_ptr, counts_ptr, num_pairs, BLOCK_E: tl.constexpr, BLOCK_P: tl.constexpr, DEPENDENT: tl.constexpr
):  # fmt: skip
    """Write counts [chunks, BLOCK_E]: how many pairs of a chunk an expert has."""
    wait_for_previous(DEPENDENT)
    chunk = tl.program_id(0)
    pairs = chunk * BLOCK_P + tl.arange(0, BLOCK_P)
    ids = tl.load(ids_ptr + pairs, mask=pairs < num_pairs, other=-1)
    counts = tl.histogram(tl.maximum(ids, 0), BLOCK_E, mask=ids >= 0)
    tl.store(counts_ptr + chunk * BLOCK_E + tl.arange(0, BLOCK_E), counts)


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def _group_by_expert(
    ids_ptr, counts_ptr, pairs_ptr, tile_experts_ptr, num_pairs, num_tiles, NUM_EXPERTS: tl.constexpr,
    BLOCK_E: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, BLOCK_C: tl.constexpr,
    DEPENDENT: tl.constexpr,
):  # fmt: skip
    """Write one expert's pairs of one chunk. Without counts [chunks, BLOCK_E] there is one chunk, counted here."""
    wait_for_previous(DEPENDENT)
    expert, chunk, num_chunks = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    experts, steps = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_P)
    pairs = chunk * BLOCK_P + steps
    ids = tl.load(ids_ptr + pairs, mask=pairs < num_pairs, other=-1)
    before = tl.full([BLOCK_E], 0, tl.int32)  # pairs in earlier chunks
    if counts_ptr is None:
        counts = tl.histogram(tl.maximum(ids, 0), BLOCK_E, mask=ids >= 0)
    else:
        counts = before
        for start in range(0, num_chunks, BLOCK_C):
            chunks = start + tl.arange(0, BLOCK_C)
            count_ptrs = counts_ptr + chunks[:, None] * BLOCK_E + experts[None, :]
            block = tl.load(count_ptrs, mask=(chunks < num_chunks)[:, None], other=0)
            counts += tl.sum(block, axis=0)
            before += tl.sum(tl.where((chunks < chunk)[:, None], block, 0), axis=0)
    tiles = (counts + BLOCK_M - 1) // BLOCK_M
    first_tile = tl.sum(tl.where(experts < expert, tiles, 0), axis=0)
    end_tile = first_tile + tl.sum(tl.where(experts == expert, tiles, 0), axis=0)

    # This expert's slots: earlier chunks' pairs | this chunk's | later chunks' | padding up to end_tile · BLOCK_M.
    slot = first_tile * BLOCK_M + tl.sum(tl.where(experts == expert, before, 0), axis=0)
    is_mine = ids == expert
    tl.store(pairs_ptr + slot + tl.cumsum(is_mine.to(tl.int32), axis=0) - 1, pairs, mask=is_mine)

    # The last chunk's program also fills the padding, the last expert's of them marks the tiles without an expert.
    if chunk == num_chunks - 1:
        padding = first_tile * BLOCK_M + tl.sum(tl.where(experts == expert, counts, 0), axis=0) + tl.arange(0, BLOCK_M)
        tl.store(pairs_ptr + padding, num_pairs, mask=padding < end_tile * BLOCK_M)
        last_tile = tl.where(expert == NUM_EXPERTS - 1, num_tiles, end_tile)
        for start in range(first_tile, last_tile, BLOCK_P):
            numbers = start + steps
            tl.store(tile_experts_ptr + numbers, tl.where(numbers < end_tile, expert, -1), mask=numbers < last_tile)


def group_by_expert(expert_ids: Tensor, *, num_experts: int, block_m: int) -> ExpertTiles:
    """Sort pairs by expert: contiguous expert_ids [T, K] int32 → an expert's pairs ascend, in tiles of `block_m`.

    The K experts of a token are distinct; pairs of expert -1 are in no tile.
    """
    assert expert_ids.is_contiguous()
    assert expert_ids.dtype == torch.int32
    num_pairs, top_k = expert_ids.numel(), expert_ids.shape[1]
    if num_pairs <= num_experts and len(expert_ids) <= block_m:  # sorting would leave room for as many tiles
        return ExpertTiles(None, expert_ids.flatten(), num_pairs, top_k, num_experts)
    # Largest possible number of tiles: all but one pair of each expert in full tiles. Known without reading the GPU.
    num_tiles = min((num_pairs + min(num_experts, num_pairs) * (block_m - 1)) // block_m, num_pairs)
    pairs = torch.empty(num_tiles * block_m, dtype=torch.int32, device=expert_ids.device)
    tile_experts = torch.empty(num_tiles, dtype=torch.int32, device=expert_ids.device)
    num_chunks, block_e = triton.cdiv(num_pairs, BLOCK_P), triton.next_power_of_2(num_experts)
    options = {"BLOCK_E": block_e, "BLOCK_P": BLOCK_P, "num_warps": 4}
    options |= dependent_launch(device_info(expert_ids.device))
    counts = None
    if num_chunks > 1:
        counts = torch.empty((num_chunks, block_e), dtype=torch.int32, device=expert_ids.device)
        _count_pairs[(num_chunks,)](expert_ids, counts, num_pairs, **options)
    _group_by_expert[(num_experts, num_chunks)](
        expert_ids, counts, pairs, tile_experts, num_pairs, num_tiles, NUM_EXPERTS=num_experts, BLOCK_M=block_m,
        BLOCK_C=BLOCK_C, **options,
    )  # fmt: skip
    return ExpertTiles(pairs, tile_experts, num_pairs, top_k, num_experts)
