"""Pooled rows: requests that sample nothing; the hidden states that each needs go to its PoolingTask."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ...core.batch import NO_OUTPUT, BatchRow, RowFailure, RowOutput
from ..sampling.acceptance import NOT_FINITE


class PoolingTask(Protocol):
    """`pooling` of a request's parameters (extras/pooling/task.py). Only the step's thread touches it until the end."""

    def positions(self, row: BatchRow) -> range:
        """Return the positions of the row whose hidden states are needed."""

    def take(self, row: BatchRow, states: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> None:
        """Keep the states [positions, hidden_size]; the last row makes the result of them. A rerun changes nothing."""


def pooled_indices(rows: Sequence[BatchRow], starts: Sequence[int]) -> list[int]:
    """Return the indices of tokens whose hidden states the rows' tasks need; row i's first token is starts[i]."""
    indices: list[int] = []
    for row, start in zip(rows, starts, strict=False):
        if row.request.params.pooling is not None:
            positions, shift = row.request.params.pooling.positions(row), start - row.start
            indices += range(positions.start + shift, positions.stop + shift)
    return indices


def pooled_outputs(rows: Sequence[BatchRow], outputs: Sequence[RowOutput], hidden: Tensor) -> list[RowOutput]:
    """Hand hidden [all pooled positions, hidden_size] to the tasks. Return all outputs, pooled rows' too."""
    states = hidden.to(device="cpu", dtype=torch.float32).numpy()
    found, first = list(outputs), 0
    for index, row in enumerate(rows):
        if row.request.params.pooling is not None:
            num_own = len(row.request.params.pooling.positions(row))
            found[index] = _output(row, states[first : first + num_own])
            first += num_own
    return found


def _output(row: BatchRow, states: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> RowOutput:
    if not np.isfinite(states).all():
        return RowOutput(failure=RowFailure(NOT_FINITE))
    row.request.params.pooling.take(row, states)
    return RowOutput(finish_reason="stop") if row.needs_sampling else NO_OUTPUT
