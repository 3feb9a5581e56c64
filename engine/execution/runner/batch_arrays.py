"""A Batch's plain numbers become the ragged arrays of one forward pass. Knows no model."""

from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....kernels.ops import RaggedBatch
from ...core.batch import Batch, BatchRow
from ...core.request import Request
from ..models.forward_inputs import Array, Arrays, Inputs


class Bounds(NamedTuple):
    """What the host has to know of a batch to launch it."""

    num_decodes: int | None  # as in RaggedBatch
    max_query_len: int
    max_seq_len: int


def input_arrays(batch: Batch, *, block_size: int) -> tuple[Arrays, Bounds]:
    """Lay the rows out one after the other, as arrays named like the fields of Inputs and RaggedBatch.

    Two rows, blocks of 4 tokens: a decode of the token at position 5, and the last 3 of 7 prompt tokens.

        row 0 (start 5, 1 token, block_table [8, 2])      row 1 (start 4, 3 tokens, block_table [5, 7])
        query_start_loc [0, 1, 4]    positions [5, 4, 5, 6]        block_tables [[8, 2], [5, 7]]
        seq_lens        [6, 7]       slot_mapping [9, 28, 29, 30]  logits_indices [0, 3]

    Host work is a few list operations per row and numpy for the rest. The last token of a row may not be known yet: it
    is 0 then, and `unknown_sources` gives where it comes from.
    """
    rows = batch.rows
    lengths = np.array([row.num_tokens for row in rows], dtype=np.int32)
    query_start_loc = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(lengths, out=query_start_loc[1:])
    seq_lens = np.array([row.start for row in rows], dtype=np.int32) + lengths
    row_of_token = np.repeat(np.arange(len(rows)), lengths)
    # Position of token t = t + its row's first position - its row's first token.
    positions = np.arange(len(row_of_token), dtype=np.int64) + (seq_lens - query_start_loc[1:])[row_of_token]
    block_tables = _block_table_matrix(rows)
    arrays = {
        "token_ids": _flat_token_ids(rows),
        "positions": positions,
        "slot_mapping": _slot_mapping(block_tables, row_of_token, positions, block_size),
        "query_start_loc": query_start_loc,
        "seq_lens": seq_lens,
        "logits_indices": _logits_indices(rows, query_start_loc),
        "block_tables": block_tables,
    }
    return arrays, Bounds(int((lengths == 1).sum()), int(lengths.max()), int(seq_lens.max()))


def _flat_token_ids(rows: Sequence[BatchRow]) -> Array:
    token_ids: list[int] = []
    for row in rows:
        if row.num_tokens == 1 and not row.draft_token_ids:
            known = row.request.token_ids
            token_ids.append(known[row.start] if row.start < len(known) else 0)
        else:
            known = row.token_ids
            token_ids += known if len(known) == row.num_tokens else [*known, 0]
    return np.fromiter(token_ids, dtype=np.int64, count=len(token_ids))


def _block_table_matrix(rows: Sequence[BatchRow]) -> Array:
    """[rows, blocks of the longest] int32, padded with 0."""
    tables = [row.request.block_table for row in rows]
    lengths = np.array([len(table) for table in tables])
    matrix = np.zeros((len(rows), lengths.max()), dtype=np.int32)
    # Their bytes in one piece: 0.1 ms for 256 tables of 80 blocks, 0.6 with one assignment for each.
    matrix[np.arange(matrix.shape[1]) < lengths[:, None]] = np.frombuffer(b"".join(tables), dtype=np.int32)
    return matrix


def _slot_mapping(block_tables: Array, row_of_token: Array, positions: Array, block_size: int) -> Array:
    blocks = block_tables[row_of_token, positions // block_size].astype(np.int64)
    return blocks * block_size + positions % block_size  # type: ignore[no-any-return]


def _logits_indices(rows: Sequence[BatchRow], query_start_loc: Array) -> Array:
    """Of each row that samples its last known token and its drafts; after all of these, those for prompt logprobs."""
    sampling = [index for index, row in enumerate(rows) if row.needs_sampling]
    indices = query_start_loc[1:][sampling].astype(np.int64) - 1
    if sum([row.num_drafts for row in rows]):
        num_drafts = np.array([rows[index].num_drafts for index in sampling], dtype=np.int64)
        counts = num_drafts + 1
        # One arange over all indices, set back to 0 at the start of each row.
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        indices = np.repeat(indices - num_drafts, counts) + offsets
    if True not in [row.request.needs_prompt_logprobs for row in rows]:
        return indices
    # The logprob of a prompt token comes from the logits of the token before it.
    before = [
        np.arange(scored.start - 1 - row.start, scored.stop - 1 - row.start) + start
        for row, start in zip(rows, query_start_loc.tolist(), strict=False)
        if row.request.needs_prompt_logprobs and (scored := row.prompt_logprob_positions)
    ]
    return np.concatenate([indices, *before]) if before else indices


def unknown_sources(batch: Batch, sample_indices: Mapping[Request, int]) -> Array:
    """[num_decodes] int64: at which index of the step before the one token of a row was sampled; -1 if it is known."""
    sources = [
        sample_indices[row.request] if row.start >= len(row.request.token_ids) else -1
        for row in batch.rows
        if row.num_tokens == 1
    ]
    return np.array(sources, dtype=np.int64)


def as_inputs(fields: Mapping[str, Tensor], bounds: Bounds) -> Inputs:
    """The tensors of `input_arrays`, as the model takes them."""
    return Inputs(
        token_ids=fields["token_ids"],
        positions=fields["positions"],
        slot_mapping=fields["slot_mapping"],
        ragged=RaggedBatch(
            query_start_loc=fields["query_start_loc"],
            seq_lens=fields["seq_lens"],
            block_tables=fields["block_tables"],
            **bounds._asdict(),
        ),
        logits_indices=fields["logits_indices"],
    )


def build_inputs(batch: Batch, *, block_size: int, device: torch.device) -> Inputs:
    """The batch, all of whose tokens are known, on the device."""
    if batch.num_tokens == len(batch.rows) and not any(row.request.needs_prompt_logprobs for row in batch.rows):
        return _single_tokens(batch.rows, block_size=block_size, device=device)
    arrays, bounds = input_arrays(batch, block_size=block_size)
    return as_inputs(
        {name: torch.from_numpy(array).to(device, non_blocking=True) for name, array in arrays.items()}, bounds
    )


def _single_tokens(rows: Sequence[BatchRow], *, block_size: int, device: torch.device) -> Inputs:
    """Rows of one token each: as `input_arrays`, in two pieces made of lists.

    Each numpy call costs 10 us once the weights have gone through the caches: in a step of one row on a CPU
    `input_arrays` takes 245 to 330 us, this 100 to 122.
    """
    num_rows, tables = len(rows), [row.request.block_table for row in rows]
    positions = [row.start for row in rows]
    sampling = [index for index, row in enumerate(rows) if row.needs_sampling]
    longs = array(
        "q", [row.draft_token_ids[0] if row.draft_token_ids else row.request.token_ids[row.start] for row in rows]
    )
    longs.extend(positions)
    longs.extend(
        [table[at // block_size] * block_size + at % block_size for table, at in zip(tables, positions, strict=True)]
    )
    longs.extend(sampling)
    width = max(map(len, tables))
    ints = array("i", range(num_rows + 1))
    ints.extend([at + 1 for at in positions])
    for table in tables:
        ints.extend(table)
        ints.frombytes(bytes(ints.itemsize * (width - len(table))))
    token_ids, position_ids, slots, logits_indices = (
        torch.frombuffer(longs, dtype=torch.int64)
        .to(device)
        .split_with_sizes([num_rows, num_rows, num_rows, len(sampling)])
    )
    query_start_loc, seq_lens, block_tables = (
        torch.frombuffer(ints, dtype=torch.int32)
        .to(device)
        .split_with_sizes([num_rows + 1, num_rows, num_rows * width])
    )
    ragged = RaggedBatch(
        query_start_loc=query_start_loc,
        seq_lens=seq_lens,
        block_tables=block_tables.view(num_rows, width),
        num_decodes=num_rows,
        max_query_len=1,
        max_seq_len=max(positions) + 1,
    )
    return Inputs(token_ids, position_ids, slots, ragged, logits_indices)
