# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Top-k, top-p and min-p without a sort and without waiting for the GPU: a row finds its own threshold by bisection.

A token's distance from the row's best is d = best - logit >= 0; as integers, the bits of such floats are in the order
of the floats. The search finds the largest distance t with tally(d < t) < target. The tally counts tokens for top-k
and sums exp(-d) for top-p, so tokens with d <= t are kept, ties together. A pass tries PIVOTS distances at once, so the
interval shrinks to a ninth; the search ends when the interval holds one token.

A row of 128k tokens would keep one program busy for some 14 passes of 63 tiles, so the row is split first: a program
takes CHUNK tokens and passes on its CAPACITY nearest, with its best, its mass and the best token that it left out. One
program per row then searches among these tokens, or in the whole row if the threshold lies beyond a token that was left
out. Then each chunk is masked. So a row's threshold does not depend on other rows. A chunk is read in some 7 passes,
all but the first from L1, and written once; a row that is searched whole is read once more per pass. A row without
filters costs nothing.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# 4 tokens a thread, so a tile of 8 pivots takes 64 registers for its sums. H200, 2026-11-27, us of 32 x 128256 with
# top-k 50 and top-p 0.9: 16 warps and 2048 tokens 205, 8 and 1024 154.
BLOCK = 1024
NUM_WARPS = 8
PIVOTS = 8
CHUNK = 8192
CAPACITY = 512  # 0: every row is searched whole
ENOUGH = 480  # of CAPACITY: the search for a chunk's nearest ends there, after four passes as a rule; all take six
_FAR = tl.constexpr(0x43000000)  # bits of 128.0, a distance whose probability is 0
_BEYOND = tl.constexpr(0x7F800001)  # bits of a distance greater than infinity


@triton.jit
def _distances(row_ptr, best, start, num_tokens, BLOCK: tl.constexpr):
    ids = start + tl.arange(0, BLOCK)
    logits = tl.load(row_ptr + ids, mask=ids < num_tokens, other=float("-inf"))
    return tl.where(best > logits, best - logits, 0.0), ids  # 0 for NaN; never -0.0, whose bits are negative


@triton.jit
def _search(
    row_ptr, best, num_tokens, target, BY_MASS: tl.constexpr, low, high, low_count, high_count, low_mass, high_mass,
    BLOCK: tl.constexpr, PIVOTS: tl.constexpr, COUNTS_ONLY: tl.constexpr = False, ENOUGH: tl.constexpr = 2**31 - 1,
):  # fmt: skip
    """Tighten low <= t < high, bits of distances, until one token lies between; return the tallies of both bounds too.

    Tokens nearer than the returned `high` are kept. COUNTS_ONLY: the returned masses are meaningless. It also ends when
    ENOUGH tokens are nearer than `low`.
    """
    steps = tl.arange(0, PIVOTS) + 1
    while (high - low > 1) & (high_count - low_count > 1) & (low_count < ENOUGH):
        step = (high - low + PIVOTS) // (PIVOTS + 1)
        pivots = tl.minimum(low + steps.to(tl.int64) * step, high).to(tl.int32)
        counts = tl.full([BLOCK, PIVOTS], 0, tl.int32)
        masses = tl.full([BLOCK, PIVOTS], 0.0, tl.float32)
        for start in range(0, num_tokens, BLOCK):
            distances, ids = _distances(row_ptr, best, start, num_tokens, BLOCK)
            bits = distances.to(tl.int32, bitcast=True)
            is_near = (bits[:, None] < pivots[None, :]) & (ids < num_tokens)[:, None]
            counts += is_near.to(tl.int32)
            if not COUNTS_ONLY:
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


@triton.jit
def _asks(top_k_ptr, top_p_ptr, row, num_tokens):
    """Return (top_k, top_p, True if one of them removes tokens)."""
    top_k, top_p = tl.load(top_k_ptr + row), tl.load(top_p_ptr + row)
    return top_k, top_p, ((top_k > 0) & (top_k < num_tokens)) | (top_p < 1.0)


@triton.jit(do_not_specialize_on_alignment=["top_k_ptr", "top_p_ptr", "min_p_ptr"])
def _collect_nearest(
    logits_ptr, top_k_ptr, top_p_ptr, min_p_ptr, chunks_ptr, nearest_ptr, logits_stride, num_tokens,
    CHUNK: tl.constexpr, CAPACITY: tl.constexpr, ENOUGH: tl.constexpr, BLOCK: tl.constexpr, PIVOTS: tl.constexpr,
):  # fmt: skip
    """Write chunks [rows, 3, chunks]: best, mass, best token left out; nearest [rows, chunks, CAPACITY], or -inf."""
    row, chunk, num_chunks = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    _, _, is_asking = _asks(top_k_ptr, top_p_ptr, row, num_tokens)
    if (not is_asking) & (tl.load(min_p_ptr + row) <= 0.0):
        return
    row_ptr = logits_ptr + row * logits_stride + chunk * CHUNK
    size = tl.minimum(num_tokens - chunk * CHUNK, CHUNK)
    bests = tl.full([BLOCK], float("-inf"), tl.float32)
    for start in range(0, size, BLOCK):
        ids = start + tl.arange(0, BLOCK)
        bests = tl.maximum(bests, tl.load(row_ptr + ids, mask=ids < size, other=float("-inf")))
    best = tl.maximum(tl.max(bests, axis=0), -3e38)  # finite, so that nothing lies at inf - inf
    masses = tl.full([BLOCK], 0.0, tl.float32)
    for start in range(0, size, BLOCK):
        distances, ids = _distances(row_ptr, best, start, size, BLOCK)
        masses += tl.where(ids < size, tl.exp(-distances), 0.0)
    mass, zero = tl.sum(masses, axis=0), tl.full([], 0, tl.int32)
    low, _, _, _, _, _ = _search(
        row_ptr, best, size, CAPACITY + 1, False, zero, zero + _FAR, zero, zero + size, mass * 0.0, mass,
        BLOCK, PIVOTS, COUNTS_ONLY=True, ENOUGH=ENOUGH,
    )  # fmt: skip
    nearest_ptr += (row * num_chunks + chunk) * CAPACITY
    left_out, count = tl.full([BLOCK], float("-inf"), tl.float32), zero
    for start in range(0, size, BLOCK):
        distances, ids = _distances(row_ptr, best, start, size, BLOCK)
        is_near = (distances.to(tl.int32, bitcast=True) < low) & (ids < size)
        logits = tl.load(row_ptr + ids, mask=ids < size, other=float("-inf"))
        places = count + tl.cumsum(is_near.to(tl.int32), axis=0) - 1
        tl.store(nearest_ptr + places, logits, mask=is_near & (places < CAPACITY))
        left_out = tl.maximum(left_out, tl.where(is_near, float("-inf"), logits))
        count += tl.sum(is_near.to(tl.int32), axis=0)
    for start in range(0, CAPACITY, BLOCK):
        places = start + tl.arange(0, BLOCK)
        tl.store(nearest_ptr + places, float("-inf"), mask=(places >= count) & (places < CAPACITY))
    chunk_ptr = chunks_ptr + row * 3 * num_chunks + chunk
    tl.store(chunk_ptr, best)
    tl.store(chunk_ptr + num_chunks, mass)
    tl.store(chunk_ptr + 2 * num_chunks, tl.max(left_out, axis=0))


@triton.jit
def _farthest_kept(
    row_ptr, best, num_found, mass, top_k, top_p, num_tokens, BLOCK: tl.constexpr, PIVOTS: tl.constexpr
):  # fmt: skip
    """Return the bits of the distance from which top-k and top-p remove tokens, among `num_found` tokens."""
    zero = tl.full([], 0, tl.int32)
    low, low_count, low_mass = zero, zero, mass * 0.0
    high, high_count, high_mass = zero + _BEYOND, zero + num_found, mass
    total = mass
    if (top_k > 0) & (top_k < num_tokens):
        low, high, low_count, high_count, low_mass, high_mass = _search(
            row_ptr, best, num_found, top_k, False, low, high, low_count, high_count, low_mass, high_mass,
            BLOCK, PIVOTS,
        )  # fmt: skip
        # The tokens between low and high are equal, and the k-th is one of them: top-p counts k tokens, not all.
        share = (top_k - low_count) / tl.maximum(high_count - low_count, 1)
        total = low_mass + (high_mass - low_mass) * share
    if top_p < 1.0:
        target = tl.maximum(top_p * total, 1e-30)  # top_p 0 keeps the best
        low, high, low_count, high_count, low_mass, high_mass = _search(
            row_ptr, best, num_found, target, True, zero, high, zero, high_count, low_mass * 0.0, high_mass,
            BLOCK, PIVOTS,
        )  # fmt: skip
    return high


@triton.jit(do_not_specialize_on_alignment=["top_k_ptr", "top_p_ptr", "min_p_ptr"])
def _find_threshold(
    logits_ptr, top_k_ptr, top_p_ptr, min_p_ptr, chunks_ptr, nearest_ptr, bests_ptr, highs_ptr, logits_stride,
    num_tokens, num_chunks, CAPACITY: tl.constexpr, BLOCK_CHUNKS: tl.constexpr, BLOCK: tl.constexpr,
    PIVOTS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    top_k, top_p, is_asking = _asks(top_k_ptr, top_p_ptr, row, num_tokens)
    if (not is_asking) & (tl.load(min_p_ptr + row) <= 0.0):
        return  # nothing was collected for it
    chunks = tl.arange(0, BLOCK_CHUNKS)
    chunk_ptrs, inside = chunks_ptr + row * 3 * num_chunks + chunks, chunks < num_chunks
    bests = tl.load(chunk_ptrs, mask=inside, other=float("-inf"))
    best = tl.maximum(tl.max(bests, axis=0), -3e38)
    high = tl.full([], _BEYOND, tl.int32)
    if is_asking:
        mass = tl.sum(tl.load(chunk_ptrs + num_chunks, mask=inside, other=0.0) * tl.exp(bests - best), axis=0)
        left_out = tl.max(tl.load(chunk_ptrs + 2 * num_chunks, mask=inside, other=float("-inf")), axis=0)
        # Up to the nearest token that was left out all tallies are right.
        limit = tl.maximum(best - left_out, 0.0).to(tl.int32, bitcast=True)
        ptr, num_found = nearest_ptr + row * num_chunks * CAPACITY, num_chunks * CAPACITY
        num_searches = 0
        while (num_searches == 0) | ((num_searches == 1) & (limit < high)):
            high = _farthest_kept(ptr, best, num_found, mass, top_k, top_p, num_tokens, BLOCK, PIVOTS)
            ptr, num_found = logits_ptr + row * logits_stride, num_tokens
            num_searches += 1
    tl.store(bests_ptr + row, best)
    tl.store(highs_ptr + row, high)


@triton.jit(do_not_specialize_on_alignment=["top_k_ptr", "top_p_ptr", "min_p_ptr"])
def _mask_far(
    logits_ptr, top_k_ptr, top_p_ptr, min_p_ptr, bests_ptr, highs_ptr, logits_stride, num_tokens,
    CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    _, _, is_asking = _asks(top_k_ptr, top_p_ptr, row, num_tokens)
    min_p = tl.load(min_p_ptr + row)
    if (not is_asking) & (min_p <= 0.0):
        return
    row_ptr = logits_ptr + row * logits_stride + chunk * CHUNK
    size = tl.minimum(num_tokens - chunk * CHUNK, CHUNK)
    best, high = tl.load(bests_ptr + row), tl.load(highs_ptr + row)
    # p >= min_p · p_max reads d <= -log(min_p).
    farthest = tl.where(min_p > 0.0, -tl.log(tl.maximum(min_p, 1e-38)), float("inf"))
    for start in range(0, size, BLOCK):
        distances, ids = _distances(row_ptr, best, start, size, BLOCK)
        is_far = (distances.to(tl.int32, bitcast=True) >= high) | (distances > farthest)
        tl.store(row_ptr + ids, float("-inf"), mask=is_far & (ids < size))


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
    num_chunks = triton.cdiv(num_tokens, CHUNK)
    chunks = torch.empty((num_rows, 3, num_chunks), dtype=torch.float32, device=logits.device)
    nearest = torch.empty((num_rows, num_chunks, CAPACITY), dtype=torch.float32, device=logits.device)
    bests = torch.empty(num_rows, dtype=torch.float32, device=logits.device)
    highs = torch.empty(num_rows, dtype=torch.int32, device=logits.device)
    tile = {"BLOCK": BLOCK, "num_warps": NUM_WARPS}
    _collect_nearest[(num_rows, num_chunks)](
        logits, top_k, top_p, min_p, chunks, nearest, logits.stride(0), num_tokens, CHUNK=CHUNK, CAPACITY=CAPACITY,
        ENOUGH=ENOUGH, PIVOTS=PIVOTS, **tile,
    )  # fmt: skip
    _find_threshold[(num_rows,)](
        logits, top_k, top_p, min_p, chunks, nearest, bests, highs, logits.stride(0), num_tokens, num_chunks,
        CAPACITY=CAPACITY, BLOCK_CHUNKS=triton.next_power_of_2(num_chunks), PIVOTS=PIVOTS, BLOCK=BLOCK,
        num_warps=NUM_WARPS // 2,  # with all NUM_WARPS it would spill
    )  # fmt: skip
    _mask_far[(num_rows, num_chunks)](
        logits, top_k, top_p, min_p, bests, highs, logits.stride(0), num_tokens, CHUNK=CHUNK, **tile
    )
    return logits
