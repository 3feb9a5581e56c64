# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators
"""Spans of rows of one query token over a latent cache: how many, and the merge of their weighted results."""

import triton
import triton.language as tl
from torch import Tensor

from ..arguments import RaggedBatch
from .attention_decode import PROGRAMS_PER_MULTIPROCESSOR
from .dependent import wait_for_previous
from .device_info import DeviceInfo, dependent_launch, device_info

MAX_SPLITS = 64
# Programs of a mixed step's graph, which has the largest number of rows: 4 spans for each of 257 rows, 15 for 65.
# Untuned.
_MAX_RAGGED_PROGRAMS = 8224


def choose_num_splits(num_programs: int, num_tokens: int, gpu: DeviceInfo, *, min_tokens: int, is_ragged: bool) -> int:
    """Return the spans per row: enough to fill the GPU, at most as many as the longest row, `num_tokens`, may need.

    `is_ragged`: most rows may be absent, and one may be long; programs of absent rows end at once.
    """
    wanted = _MAX_RAGGED_PROGRAMS if is_ragged else PROGRAMS_PER_MULTIPROCESSOR * gpu.num_multiprocessors
    return max(min(wanted // num_programs, num_tokens // min_tokens, MAX_SPLITS), 1)


@triton.jit
def span_of(seq_len, split, num_splits, min_tokens, BLOCK_N: tl.constexpr):
    """Return (begin, end) of one split: tiles are distributed evenly.

    The last spans may be empty, more of them if the row has too few tokens for `min_tokens` in every span.
    """
    num_tiles = (seq_len + BLOCK_N - 1) // BLOCK_N
    tiles_per_split = tl.maximum((num_tiles + num_splits - 1) // num_splits, min_tokens // BLOCK_N)
    begin = split * tiles_per_split * BLOCK_N
    return begin, tl.minimum(begin + tiles_per_split * BLOCK_N, seq_len)


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
    begin, end = span_of(tl.load(seq_lens_ptr + row), splits, num_splits, min_tokens, BLOCK_N)
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


def merge_splits(
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
