"""A Batch's plain numbers become the ragged tensors of one forward pass. Knows no model."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..kernels.ops import RaggedBatch
from .batch import Batch


class Inputs(NamedTuple):
    """One forward pass over T tokens of B rows, L of which logits are wanted of."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64, block · block_size + offset
    ragged: RaggedBatch
    # [L] int64, T-indices: the last known token of each row that samples with its drafts, then what rows score
    logits_indices: Tensor


def build_inputs(batch: Batch, *, block_size: int, device: torch.device) -> Inputs:
    """Lay the rows out one after the other. Host work is a few list operations per row and numpy for the rest."""
    rows = batch.rows
    lengths = np.fromiter((row.num_tokens for row in rows), dtype=np.int32, count=len(rows))
    query_start_loc = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum(lengths, out=query_start_loc[1:])
    seq_lens = np.fromiter((row.end for row in rows), dtype=np.int32, count=len(rows))

    token_ids: list[int] = []
    for row in rows:
        token_ids += row.token_ids
    # Position of token t = its place in the row + the row's start.
    row_of_token = np.repeat(np.arange(len(rows)), lengths)
    starts = seq_lens - lengths
    positions = np.arange(len(token_ids), dtype=np.int64) - (query_start_loc[:-1] - starts)[row_of_token]

    tables = [row.request.block_table for row in rows]
    block_tables = np.zeros((len(rows), max(map(len, tables))), dtype=np.int32)
    for index, table in enumerate(tables):
        block_tables[index, : len(table)] = table
    blocks = block_tables[row_of_token, positions // block_size].astype(np.int64)
    slot_mapping = blocks * block_size + positions % block_size

    sampling = [index for index, row in enumerate(rows) if row.samples]
    logits_indices = query_start_loc[1:][sampling].astype(np.int64) - 1
    num_drafts = np.array([rows[index].num_drafts for index in sampling], dtype=np.int64)
    if num_drafts.any():
        counts = num_drafts + 1
        # One arange over all places, set back to 0 at the start of each row.
        offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        logits_indices = np.repeat(logits_indices - num_drafts, counts) + offsets
    # The logits that score a token are those of the token before it.
    scoring = [
        np.arange(scored.start - 1 - row.start, scored.stop - 1 - row.start) + start
        for row, start in zip(rows, query_start_loc.tolist(), strict=False)
        if row.request.is_scored and (scored := row.scored)
    ]
    if scoring:
        logits_indices = np.concatenate([logits_indices, *scoring])

    def tensor(array: "np.ndarray[tuple[int, ...], np.dtype[np.generic]]") -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return Inputs(
        token_ids=tensor(np.array(token_ids, dtype=np.int64)),
        positions=tensor(positions),
        slot_mapping=tensor(slot_mapping),
        ragged=RaggedBatch(
            query_start_loc=tensor(query_start_loc),
            seq_lens=tensor(seq_lens),
            block_tables=tensor(block_tables),
            num_decodes=int((lengths == 1).sum()),
            max_query_len=int(lengths.max()),
            max_seq_len=int(seq_lens.max()),
        ),
        logits_indices=tensor(logits_indices),
    )
