"""Batch arrays: the rows of a batch, one after the other, as the ragged arrays of one forward pass. Knows no model.

Two rows, blocks of 4 tokens: a decode of the token at position 5, and the last 3 of 7 prompt tokens.

    row 0 (start 5, 1 token, block_table [8, 2])      row 1 (start 4, 3 tokens, block_table [5, 7])
    query_start_loc [0, 1, 4]    positions [5, 4, 5, 6]        block_tables [[8, 2], [5, 7]]
    seq_lens        [6, 7]       slot_mapping [9, 28, 29, 30]  logits_indices [0, 3]

An array per row (an adapter, a second kind of state) or more logits indices (pooled outputs) would be one more line of
`lay_out`: an array goes to the device under its name, whatever it is.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate

import numpy as np

from ...core.batch import BatchRow
from ...core.request import Request
from ..models.forward_inputs import Array, Arrays, Bounds


def lay_out(rows: Sequence[BatchRow], *, block_size: int) -> tuple[Arrays, Bounds]:
    """Return the arrays of a batch, named like the fields of Inputs and RaggedBatch, and its bounds.

    Rows of one token come first. The token of such a row may not be known yet: its id is 0, and `token_sources` says
    where the token comes from.

    A numpy call costs 10 us once the weights have gone through the caches. So tokens are listed in Python, a
    comprehension for all rows of one token and a slice or a range for each longer row, and each list becomes an array
    once.
    """
    single = [row for row in rows if row.num_tokens == 1]
    longer = rows[len(single) :]
    starts = array("i", accumulate([row.num_tokens for row in rows], initial=0))
    ends = array("i", [row.start + row.num_tokens for row in rows])
    return {
        "token_ids": np.asarray(_token_ids(single, longer)),
        "positions": np.asarray(_positions(single, longer)),
        "slot_mapping": np.asarray(_slots(single, longer, block_size)),
        "query_start_loc": np.asarray(starts),
        "seq_lens": np.asarray(ends),
        "logits_indices": np.asarray(_logits_indices(rows, starts)),
        "block_tables": _block_tables(rows),
    }, Bounds(len(single), max([row.num_tokens for row in longer], default=1), max(ends))


def _token_ids(single: Sequence[BatchRow], longer: Sequence[BatchRow]) -> "array[int]":
    token_ids = array("q", [_only_token(row) for row in single])
    for row in longer:
        token_ids.extend(row.token_ids)
    return token_ids


def _only_token(row: BatchRow) -> int:
    known = row.request.token_ids
    return known[row.start] if row.start < len(known) else (*row.draft_token_ids, 0)[0]


def _positions(single: Sequence[BatchRow], longer: Sequence[BatchRow]) -> "array[int]":
    positions = array("q", [row.start for row in single])
    for row in longer:
        positions.extend(range(row.start, row.end))
    return positions


def _slots(single: Sequence[BatchRow], longer: Sequence[BatchRow], block_size: int) -> "array[int]":
    """Return each token's slot in the cache: block · block_size + offset."""
    slots = array(
        "q", [row.request.block_table[row.start // block_size] * block_size + row.start % block_size for row in single]
    )
    for row in longer:
        table, end = row.request.block_table, row.end
        first = row.start // block_size
        for index in range(first, -(-end // block_size)):  # a block's slots are neighbours
            slot, position = table[index] * block_size, index * block_size
            slots.extend(range(slot + max(row.start - position, 0), slot + min(end - position, block_size)))
    return slots


def _logits_indices(rows: Sequence[BatchRow], starts: "array[int]") -> "array[int]":
    """Return the indices of tokens that need logits: for sampling, and after these for prompt logprobs.

    A row samples after its last known token and after each draft.
    """
    if not sum([row.num_drafts for row in rows]):
        indices = array("q", [end - 1 for row, end in zip(rows, starts[1:], strict=True) if row.needs_sampling])
    else:
        indices = array("q")
        for row, end in zip(rows, starts[1:], strict=True):
            indices.extend(range(end - 1 - row.num_drafts, end) if row.needs_sampling else ())
    if True in [row.request.needs_prompt_logprobs for row in rows]:
        for row, start in zip(rows, starts, strict=False):
            scored, offset = row.prompt_logprob_positions, start - row.start
            # The logprob of a prompt token comes from the logits of the token before it.
            indices.extend(range(scored.start - 1 + offset, scored.stop - 1 + offset))
    return indices


def _block_tables(rows: Sequence[BatchRow]) -> Array:
    """Return the block tables [rows, blocks of the longest] int32, padded with 0."""
    tables = [row.request.block_table for row in rows]
    width = max(map(len, tables))
    flat = array("i")
    for table in tables:
        flat.extend(table)
        flat.frombytes(bytes(flat.itemsize * (width - len(table))))
    return np.asarray(flat).reshape(len(tables), width)


def token_sources(rows: Sequence[BatchRow], sample_indices: Mapping[Request, int]) -> Array:
    """Return for each row of one token the index at which the last step samples this token; -1 for a known token."""
    sources = [
        sample_indices[row.request] if row.start >= len(row.request.token_ids) else -1
        for row in rows
        if row.num_tokens == 1
    ]
    return np.array(sources, dtype=np.int64)
