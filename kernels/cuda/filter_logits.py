# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Top-k, top-p and min-p without a sort and without asking the GPU: every row finds its own threshold by bisection.

One program takes one row. Seen from the row's best, a token lies at a distance d = best - logit >= 0; as integers, the
bits of such floats are in the order of the floats. Searched is the largest distance t with tally(d < t) < target: the
tally counts tokens for top-k and sums exp(-d) for top-p, so all that is no farther than t stays, equal ones together.
A pass over the row tries PIVOTS distances at once, so the interval shrinks to a ninth; it ends when one token is left
in it. Per row 4·V bytes for the best, 4·V for the whole mass, 4·V per pass (5 to 8 of 32-bit distances; they come from
L2 up to 96 rows of 128k) and 8·V for the result; about 3·PIVOTS operations per token and pass. A row that asks for
nothing costs nothing. A sort moves 8 bytes per token at least 4 times each way.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# 4 tokens a thread, so a tile of 8 pivots takes 64 registers for its sums. Untuned.
BLOCK = 2048
NUM_WARPS = 16
PIVOTS = 8
_BEYOND = tl.constexpr(0x7F800001)  # bits of a distance greater than infinity


@triton.jit
def _distances(row_ptr, best, start, num_tokens, BLOCK: tl.constexpr):
    ids = start + tl.arange(0, BLOCK)
    logits = tl.load(row_ptr + ids, mask=ids < num_tokens, other=float("-inf"))
    return tl.maximum(best - logits, 0.0), ids  # never -0.0, whose bits are negative


@triton.jit
def _search(
    row_ptr, best, num_tokens, target, BY_MASS: tl.constexpr, low, high, low_count, high_count, low_mass, high_mass,
    BLOCK: tl.constexpr, PIVOTS: tl.constexpr,
):  # fmt: skip
    """Tighten low <= t < high, bits of distances, until one token lies between; with the tallies of d < low, d < high.

    All that is nearer than the `high` returned stays.
    """
    steps = tl.arange(0, PIVOTS) + 1
    while (high - low > 1) & (high_count - low_count > 1):
        step = (high - low + PIVOTS) // (PIVOTS + 1)
        pivots = tl.minimum(low + steps.to(tl.int64) * step, high).to(tl.int32)
        counts = tl.full([BLOCK, PIVOTS], 0, tl.int32)
        masses = tl.full([BLOCK, PIVOTS], 0.0, tl.float32)
        for start in range(0, num_tokens, BLOCK):
            distances, ids = _distances(row_ptr, best, start, num_tokens, BLOCK)
            bits = distances.to(tl.int32, bitcast=True)
            is_near = (bits[:, None] < pivots[None, :]) & (ids < num_tokens)[:, None]
            counts += is_near.to(tl.int32)
            masses += tl.where(is_near, tl.exp(-distances)[:, None], 0.0)
        count, mass = tl.sum(counts, axis=0), tl.sum(masses, axis=0)
        if BY_MASS:
            is_low = mass < target
        else:
            is_low = count < target
        # Pivots ascend and so do their tallies. The last may be `high` itself, which is never low.
        low_count = tl.maximum(low_count, tl.max(tl.where(is_low, count, 0), axis=0))
        high_count = tl.minimum(high_count, tl.min(tl.where(is_low, num_tokens, count), axis=0))
        low_mass = tl.maximum(low_mass, tl.max(tl.where(is_low, mass, 0.0), axis=0))
        high_mass = tl.minimum(high_mass, tl.min(tl.where(is_low, high_mass, mass), axis=0))
        low = tl.maximum(low, tl.max(tl.where(is_low, pivots, 0), axis=0))
        high = tl.minimum(high, tl.min(tl.where(is_low, high, pivots), axis=0))
    return low, high, low_count, high_count, low_mass, high_mass


@triton.jit(do_not_specialize_on_alignment=["top_k_ptr", "top_p_ptr", "min_p_ptr"])
def _filter_logits(
    logits_ptr, top_k_ptr, top_p_ptr, min_p_ptr, logits_stride, num_tokens, BLOCK: tl.constexpr, PIVOTS: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * logits_stride
    top_k, top_p, min_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row), tl.load(min_p_ptr + row)
    has_top_k = (top_k > 0) & (top_k < num_tokens)
    if (not has_top_k) & (top_p >= 1.0) & (min_p <= 0.0):
        return
    bests = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, num_tokens, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        bests = tl.maximum(bests, tl.load(row_ptr + ids, mask=ids < num_tokens, other=float("-inf")))
    best = tl.max(bests, axis=0)
    high = tl.full([], _BEYOND, tl.int32)
    if has_top_k | (top_p < 1.0):
        masses = tl.full([BLOCK], 0.0, tl.float32)
        for start in range(0, num_tokens, BLOCK):
            distances, ids = _distances(row_ptr, best, start, num_tokens, BLOCK)
            masses += tl.where(ids < num_tokens, tl.exp(-distances), 0.0)
        low, low_count, low_mass = tl.full([], 0, tl.int32), tl.full([], 0, tl.int32), tl.full([], 0.0, tl.float32)
        high_count, high_mass = low_count + num_tokens, tl.sum(masses, axis=0)
        total = high_mass
        if has_top_k:
            low, high, low_count, high_count, low_mass, high_mass = _search(
                row_ptr, best, num_tokens, top_k, False, low, high, low_count, high_count, low_mass, high_mass,
                BLOCK, PIVOTS,
            )  # fmt: skip
            # Between low and high lie equals, of which the k-th may be any: top-p counts k tokens, not all of them.
            total = low_mass + (high_mass - low_mass) * (top_k - low_count) / (high_count - low_count)
        if top_p < 1.0:
            target = tl.maximum(top_p * total, 1e-30)  # top_p 0 keeps the best
            low, low_count, low_mass = low * 0, low_count * 0, low_mass * 0.0
            low, high, low_count, high_count, low_mass, high_mass = _search(
                row_ptr, best, num_tokens, target, True, low, high, low_count, high_count, low_mass, high_mass,
                BLOCK, PIVOTS,
            )  # fmt: skip
    # p >= min_p · p_max reads d <= -log(min_p).
    farthest = tl.where(min_p > 0.0, -tl.log(tl.maximum(min_p, 1e-38)), float("inf"))
    for start in range(0, num_tokens, BLOCK):
        distances, ids = _distances(row_ptr, best, start, num_tokens, BLOCK)
        is_far = (distances.to(tl.int32, bitcast=True) >= high) | (distances > farthest)
        tl.store(row_ptr + ids, float("-inf"), mask=is_far & (ids < num_tokens))


def filter_logits(logits: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """logits [S, V] float32 with contiguous rows, top_k [S] int32, top_p and min_p [S] float32 → `logits` itself."""
    num_rows, num_tokens = logits.shape
    assert logits.dtype == top_p.dtype == min_p.dtype == torch.float32
    assert top_k.dtype == torch.int32
    assert logits.stride(1) == 1
    assert top_k.shape == top_p.shape == min_p.shape == (num_rows,)
    assert top_k.is_contiguous()
    assert top_p.is_contiguous()
    assert min_p.is_contiguous()
    _filter_logits[(num_rows,)](
        logits, top_k, top_p, min_p, logits.stride(0), num_tokens, BLOCK=BLOCK, PIVOTS=PIVOTS, num_warps=NUM_WARPS
    )
    return logits
