# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Argmax over a vocabulary: of logits, or of logits with noise, which samples from softmax(logits) without it:
logit - log(-log(1 - v)) (Gumbel 1954; Maddison 2014).

v comes from a hash of the row's key and the token id (see `ops.gumbel_argmax`), so no random numbers are stored. One
program takes one row and BLOCK tokens, a second kernel the best of a row's programs. A token takes one read of 4 bytes
and about 60 operations, a third of them for the hash; an H100 has about 20 float32 operations per byte, so reads and
operations nearly balance.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

# 16 tokens a thread: four 16-byte loads in flight, and 31 programs for a row of 128k tokens. Untuned.
BLOCK = 4096
NUM_WARPS = 8


@triton.jit
def _scramble(h):
    """MurmurHash3's finaliser on uint32 (Appleby 2011)."""
    h = (h ^ (h >> 16)) * 0x85EBCA6B
    h = (h ^ (h >> 13)) * 0xC2B2AE35
    return h ^ (h >> 16)


@triton.jit
def _gumbel_noise(key, ids):
    """-log(-log(1 - v)), v in (0, 1). The noise is large for small v, where 1 - v would lose the digits that decide."""
    low, high = key.to(tl.uint32), (key >> 32).to(tl.uint32)
    hashed = _scramble(_scramble(ids.to(tl.uint32) ^ low) + high)
    v = (hashed.to(tl.float32) + 0.5) * 2.3283064365386963e-10  # 2^-32
    v = tl.minimum(v, 0.99999994)  # 1 - 2^-24: rounded up to 1, noise of -inf would hide the only token
    # -log(1 - v): up to v = 1/64 five terms of the series, which are exact to 2^-24.
    series = v * (1.0 + v * (0.5 + v * (0.33333334 + v * (0.25 + v * 0.2))))
    return -tl.log(tl.where(v < 0.015625, series, -tl.log(1.0 - v)))


@triton.jit
def _largest_of(x):
    """Return the largest value, NaN if there is one, and its index, among equal ones the first."""
    is_nan = x != x
    largest, index = tl.max(tl.where(is_nan, float("inf"), x), axis=0, return_indices=True)
    return tl.where(tl.max(is_nan.to(tl.int32), axis=0) > 0, float("nan"), largest), index


@triton.jit(do_not_specialize_on_alignment=["keys_ptr"])
def _max_logits(
    logits_ptr, keys_ptr, largest_ptr, tokens_ptr, logits_stride, num_tokens, BLOCK: tl.constexpr
):  # fmt: skip
    """Write a chunk's largest logit, with noise if there are keys, and its token."""
    row, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    ids = chunk * BLOCK + tl.arange(0, BLOCK)
    logits = tl.load(logits_ptr + row * logits_stride + ids, mask=ids < num_tokens, other=float("-inf")).to(tl.float32)
    if keys_ptr is not None:
        noise = _gumbel_noise(tl.load(keys_ptr + row), ids)
        largest, index = tl.max(logits + noise, axis=0, return_indices=True)
    else:
        largest, index = _largest_of(logits)
    place = row * tl.num_programs(1) + chunk
    tl.store(largest_ptr + place, largest)
    tl.store(tokens_ptr + place, chunk * BLOCK + index)


@triton.jit
def _max_of_chunks(chunks_ptr, tokens_ptr, largest_ptr, out_ptr, num_chunks, BLOCK_CHUNKS: tl.constexpr):
    """Write a row's token and, unless `largest_ptr` is None, its largest logit."""
    row = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, BLOCK_CHUNKS)
    each = tl.load(chunks_ptr + row * num_chunks + chunks, mask=chunks < num_chunks, other=float("-inf"))
    if largest_ptr is not None:
        largest, best = _largest_of(each)
    else:
        largest, best = tl.max(each, axis=0, return_indices=True)
    # A NaN may give the padding.
    token = tl.load(tokens_ptr + row * num_chunks + tl.minimum(best, num_chunks - 1)).to(tl.int64)
    if largest_ptr is not None:
        tl.store(largest_ptr + row, largest)
        token = tl.where(tl.abs(largest) < float("inf"), token, -1)
    tl.store(out_ptr + row, token)


def gumbel_argmax(logits: Tensor, keys: Tensor) -> Tensor:
    """logits [S, V] with contiguous rows, keys [S] int64 → tokens [S] int64."""
    assert keys.shape == logits.shape[:1]
    assert keys.is_contiguous()
    return _argmax(logits, keys, None)


def max_logits(logits: Tensor) -> tuple[Tensor, Tensor]:
    """logits [S, V] with contiguous rows → (largest [S] float32, tokens [S] int64).

    For a row of 128,256 torch's kernels take 49 us of an H100, one program's maximum 42 of them; these two take 5.
    """
    largest = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    return largest, _argmax(logits, None, largest)


def _argmax(logits: Tensor, keys: Tensor | None, largest: Tensor | None) -> Tensor:
    """Return the tokens [S] int64; fill `largest`."""
    num_rows, num_tokens = logits.shape
    assert logits.stride(1) == 1
    num_chunks = triton.cdiv(num_tokens, BLOCK)
    chunks = torch.empty((num_rows, num_chunks), dtype=torch.float32, device=logits.device)
    places = torch.empty((num_rows, num_chunks), dtype=torch.int32, device=logits.device)
    tokens = torch.empty(num_rows, dtype=torch.int64, device=logits.device)
    if num_rows:
        _max_logits[(num_rows, num_chunks)](
            logits, keys, chunks, places, logits.stride(0), num_tokens, BLOCK=BLOCK, num_warps=NUM_WARPS
        )
        _max_of_chunks[(num_rows,)](
            chunks, places, largest, tokens, num_chunks, BLOCK_CHUNKS=triton.next_power_of_2(num_chunks), num_warps=1
        )
    return tokens
