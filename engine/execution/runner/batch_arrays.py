"""Batch arrays: the rows of a batch, one after the other, as the ragged arrays of one forward pass. Knows no model.

Two rows, blocks of 4 tokens: a decode of the token at position 5, and the last 3 of 7 prompt tokens.

    row 0 (start 5, 1 token, block_table [8, 2])      row 1 (start 4, 3 tokens, block_table [5, 7])
    query_start_loc [0, 1, 4]    positions [5, 4, 5, 6]        block_tables [[8, 2], [5, 7]]
    seq_lens        [6, 7]       slot_mapping [9, 28, 29, 30]  logits_indices [0, 3]

An array goes to the device under its name, whatever it is. So an adapter per row, or a table for each further kind of
state, is one more array of `lay_out` that `Inputs.of` reads and `padding` (cuda_graphs.py) pads.
"""

from array import array
from collections.abc import Mapping, Sequence
from itertools import accumulate, chain
from operator import add

import numpy as np

from ...core.batch import BatchRow
from ...core.request import Request
from ..models.forward_inputs import Array, Arrays, Bounds
from .pooled_rows import pooled_indices


def lay_out(rows: Sequence[BatchRow], *, block_size: int) -> tuple[Arrays, Bounds]:
    """Return the arrays of a batch, named like the fields of Inputs and RaggedBatch, and its bounds.

    Rows of one token come first. The token of such a row may not be known yet: its id is 0, and `token_sources` says
    where the token comes from.

    A numpy call costs 10 us once the weights have gone through the caches. So each list becomes an array once, and
    lists spread few tokens over places: one row on a CPU took 245 to 330 us with numpy alone, with them 100 to 122.
    """
    lengths, first_positions = [row.num_tokens for row in rows], [row.start for row in rows]
    starts, ends = array("i", accumulate(lengths, initial=0)), array("i", map(add, first_positions, lengths))
    tables = [row.request.block_table for row in rows]
    block_tables = _matrix(tables)
    if starts[-1] <= max(len(rows), 64):
        if starts[-1] > len(rows):
            tables = [table for table, length in zip(tables, lengths, strict=True) for _ in range(length)]
            first_positions = list(chain.from_iterable(map(range, first_positions, ends)))
        positions = np.array(first_positions, dtype=np.int64)
        places = zip(tables, first_positions, strict=True)
        slots = np.array([table[at // block_size] * block_size + at % block_size for table, at in places], np.int64)
    else:
        row_of_token = np.repeat(np.arange(len(rows)), lengths)
        # Position of token t = t + its row's first position - its row's first token.
        shifts = np.array(first_positions, dtype=np.int64) - np.asarray(starts)[:-1]
        positions = np.arange(starts[-1]) + shifts[row_of_token]
        blocks = block_tables[row_of_token, positions // block_size].astype(np.int64)
        slots = blocks * block_size + positions % block_size
    arrays = {
        "token_ids": np.array(_token_ids(rows), dtype=np.int64),
        "positions": positions,
        "slot_mapping": slots,
        "query_start_loc": np.asarray(starts),
        "seq_lens": np.asarray(ends),
        "logits_indices": np.array(_logits_indices(rows, starts), dtype=np.int64),
        "block_tables": block_tables,
    }
    return arrays, Bounds(lengths.count(1), max(lengths), max(ends))


def _token_ids(rows: Sequence[BatchRow]) -> list[int]:
    """Return the token ids of all rows; 0 for a token that is not known yet."""
    token_ids: list[int] = []
    for row in rows:
        if row.num_tokens > 1:
            token_ids += row.token_ids
        elif row.start < len(known := row.request.token_ids):
            token_ids.append(known[row.start])
        else:
            token_ids.append((*row.draft_token_ids, 0)[0])
    return token_ids


def _logits_indices(rows: Sequence[BatchRow], starts: Sequence[int]) -> list[int]:
    """Return the indices of tokens that need logits: for sampling, then for prompt logprobs, then to be pooled.

    A row samples after its last known token and after each draft.
    """
    indices: list[int] = []
    for row, end in zip(rows, starts[1:], strict=True):
        if row.needs_sampling and row.request.params.pooling is None:
            indices += range(end - 1 - row.num_drafts, end) if row.num_drafts else (end - 1,)
    if True in [row.request.needs_prompt_logprobs for row in rows]:
        for row, start in zip(rows, starts, strict=False):
            scored, shift = row.prompt_logprob_positions, start - row.start
            # The logprob of a prompt token comes from the logits of the token before it.
            indices += range(scored.start - 1 + shift, scored.stop - 1 + shift)
    return indices + pooled_indices(rows, starts)


def _matrix(tables: Sequence["array[int]"]) -> Array:
    """Return block tables as one array [rows, blocks of the longest] int32, padded with 0."""
    num_bytes = tables[0].itemsize * max(map(len, tables))
    padded = b"".join([table.tobytes().ljust(num_bytes, b"\0") for table in tables])
    return np.frombuffer(bytearray(padded), dtype=np.int32).reshape(len(tables), -1)


def token_sources(rows: Sequence[BatchRow], sample_indices: Mapping[Request, int]) -> Array:
    """Return for each row of one token the index at which the last step samples this token; -1 for a known token."""
    sources = [
        sample_indices[row.request] if row.start >= len(row.request.token_ids) else -1
        for row in rows
        if row.num_tokens == 1
    ]
    return np.array(sources, dtype=np.int64)
