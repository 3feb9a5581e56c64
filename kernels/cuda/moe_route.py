# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Routing of tokens to experts: softmax and the K largest per token, then the (token, k) pairs sorted by expert.

`route` reads 2·E bytes of logits per token, writes 8·K and takes about E·(K + 5) operations: hardly more than a launch.
`group_by_expert` is a counting sort whose counts stay on the GPU. Pair p = t·K + k. An expert's pairs fill whole tiles
of BLOCK_M slots, so that a tile of the matmul has one expert:

    slots    expert 0: p p p p | p p . .    expert 2: p . . .    ...      . = padding, holds num_pairs
    experts             0      |    0               2            ...      -1 -1 beyond the last
An expert's program reads all T·K ids twice, in all 8·E·T·K bytes from the L2 cache: 4 MB at 512 tokens, K = 8, E = 128.
Few pairs are not grouped: their own experts are the tiles' (`load_tile`), without a launch.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from .device_info import dependent_launch, device_info


@triton.jit
def _route(
    logits_ptr, weights_ptr, ids_ptr, logits_stride, NUM_EXPERTS: tl.constexpr, TOP_K: tl.constexpr,
    RENORMALIZE: tl.constexpr, BLOCK_E: tl.constexpr, BLOCK_K: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    token = tl.program_id(0).to(tl.int64)
    experts, ks = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_K)
    logits_ptrs = logits_ptr + token * logits_stride + experts
    logits = tl.load(logits_ptrs, mask=experts < NUM_EXPERTS, other=float("-inf")).to(tl.float32)
    left = tl.exp(logits - tl.max(logits, axis=0))
    left = left / tl.sum(left, axis=0)
    weights = tl.full([BLOCK_K], 0.0, tl.float32)
    ids = tl.full([BLOCK_K], 0, tl.int32)
    for k in tl.static_range(TOP_K):
        best = tl.argmax(left, axis=0)
        weights = tl.where(ks == k, tl.max(left, axis=0), weights)
        ids = tl.where(ks == k, best, ids)
        left = tl.where(experts == best, -1.0, left)
    if RENORMALIZE:
        weights = weights / tl.sum(weights, axis=0)
    tl.store(weights_ptr + token * TOP_K + ks, weights, mask=ks < TOP_K)
    tl.store(ids_ptr + token * TOP_K + ks, ids, mask=ks < TOP_K)


def route(router_logits: Tensor, *, top_k: int, renormalize: bool) -> tuple[Tensor, Tensor]:
    """router_logits [T, E] with contiguous rows → (weights [T, K] float32, expert_ids [T, K] int32)."""
    num_tokens, num_experts = router_logits.shape
    assert 1 <= top_k <= num_experts
    assert router_logits.stride(1) == 1
    weights = torch.empty((num_tokens, top_k), dtype=torch.float32, device=router_logits.device)
    ids = torch.empty((num_tokens, top_k), dtype=torch.int32, device=router_logits.device)
    _route[(num_tokens,)](
        router_logits, weights, ids, router_logits.stride(0),
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
    # with a tile of its own, of which the first one of an expert takes all of the expert's
    pairs: Tensor | None
    experts: Tensor  # [tiles] int32, -1 in tiles without an expert, which come last


@triton.jit
def load_tile(pairs_ptr, experts_ptr, num_pairs, TOP_K: tl.constexpr, BLOCK_M: tl.constexpr):
    """Return (the expert of this program's tile, -1: nothing is to do; its pairs [BLOCK_M], padded by num_pairs)."""
    tile = tl.program_id(0)
    expert = tl.load(experts_ptr + tile)
    if pairs_ptr is None:
        pairs = tl.full([BLOCK_M], 0, tl.int32) + num_pairs
        for k in tl.static_range(TOP_K):
            places = tl.arange(0, BLOCK_M) * TOP_K + k  # the k-th of each token
            is_mine = tl.load(experts_ptr + places, mask=places < num_pairs, other=-1) == expert
            pairs = tl.where(is_mine, places, pairs)
        expert = tl.where(tl.min(pairs, axis=0) < tile, -1, expert)
    else:
        pairs = tl.load(pairs_ptr + tile * BLOCK_M + tl.arange(0, BLOCK_M))
    return expert.to(tl.int64), pairs


# Number of ids that are read at a time. Untuned.
BLOCK_P = 1024


@triton.jit(do_not_specialize=["num_pairs", "num_tiles"])
def _group_by_expert(
    ids_ptr, pairs_ptr, tile_experts_ptr, num_pairs, num_tiles, NUM_EXPERTS: tl.constexpr, BLOCK_E: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_P: tl.constexpr, DEPENDENT: tl.constexpr,
):  # fmt: skip
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
    expert = tl.program_id(0)
    experts, steps = tl.arange(0, BLOCK_E), tl.arange(0, BLOCK_P)
    counts = tl.full([BLOCK_E], 0, tl.int32)
    for start in range(0, num_pairs, BLOCK_P):
        inside = start + steps < num_pairs
        counts += tl.histogram(tl.load(ids_ptr + start + steps, mask=inside, other=0), BLOCK_E, mask=inside)
    tiles = (counts + BLOCK_M - 1) // BLOCK_M
    first_tile = tl.sum(tl.where(experts < expert, tiles, 0), axis=0)
    end_tile = first_tile + tl.sum(tl.where(experts == expert, tiles, 0), axis=0)

    # This expert's slots: [first_tile · BLOCK_M, slot) pairs | [slot, end_tile · BLOCK_M) padding.
    slot = first_tile * BLOCK_M
    for start in range(0, num_pairs, BLOCK_P):
        pairs = start + steps
        inside = pairs < num_pairs
        is_mine = tl.load(ids_ptr + pairs, mask=inside, other=-1) == expert
        places = slot + tl.cumsum(is_mine.to(tl.int32), axis=0) - 1
        tl.store(pairs_ptr + places, pairs, mask=is_mine)
        slot += tl.sum(is_mine.to(tl.int32), axis=0)
    padding = slot + tl.arange(0, BLOCK_M)
    tl.store(pairs_ptr + padding, num_pairs, mask=padding < end_tile * BLOCK_M)

    # The last expert's program also marks the tiles without an expert.
    last_tile = tl.where(expert == NUM_EXPERTS - 1, num_tiles, end_tile)
    for start in range(first_tile, last_tile, BLOCK_P):
        numbers = start + steps
        tl.store(tile_experts_ptr + numbers, tl.where(numbers < end_tile, expert, -1), mask=numbers < last_tile)


def group_by_expert(expert_ids: Tensor, *, num_experts: int, block_m: int) -> ExpertTiles:
    """Sort pairs by expert: contiguous expert_ids [T, K] int32 → an expert's pairs ascend, in tiles of `block_m`.

    The K experts of a token are distinct.
    """
    assert expert_ids.is_contiguous()
    assert expert_ids.dtype == torch.int32
    num_pairs = expert_ids.numel()
    if num_pairs <= num_experts and len(expert_ids) <= block_m:  # sorting would leave room for as many tiles
        return ExpertTiles(None, expert_ids.flatten())
    # Largest possible number of tiles: all but one pair of each expert in full tiles. Known without reading the GPU.
    num_tiles = min((num_pairs + min(num_experts, num_pairs) * (block_m - 1)) // block_m, num_pairs)
    pairs = torch.empty(num_tiles * block_m, dtype=torch.int32, device=expert_ids.device)
    tile_experts = torch.empty(num_tiles, dtype=torch.int32, device=expert_ids.device)
    _group_by_expert[(num_experts,)](
        expert_ids, pairs, tile_experts, num_pairs, num_tiles,
        NUM_EXPERTS=num_experts,
        BLOCK_E=triton.next_power_of_2(num_experts),
        BLOCK_M=block_m,
        BLOCK_P=BLOCK_P,
        num_warps=4,
        **dependent_launch(device_info(expert_ids.device)),
    )  # fmt: skip
    return ExpertTiles(pairs, tile_experts)
