"""Pooled rows: requests that sample nothing; the hidden states that each needs go to its PoolingTask."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from ...core.batch import NO_OUTPUT, BatchRow, RowFailure, RowOutput
from ..sampling.acceptance import NOT_FINITE

NO_POSITIONS = range(0)


class PoolingTask(Protocol):
    """`pooling` of a request's parameters (extras/pooling/task.py). Only the step's thread touches it until the end."""

    def positions(self, row: BatchRow) -> range:
        """Return the positions of the row whose hidden states are needed."""

    def take(self, row: BatchRow, states: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> None:
        """Keep the states [positions, hidden_size]; the last row makes the result of them. A rerun changes nothing."""


def pooled_positions(row: BatchRow) -> range:
    """Return the positions whose hidden states the row's task needs; none for a row that samples."""
    task: PoolingTask | None = row.request.params.pooling
    return NO_POSITIONS if task is None else task.positions(row)


def pooled_outputs(rows: Sequence[BatchRow], outputs: Sequence[RowOutput], hidden: Tensor) -> list[RowOutput]:
    """Hand hidden [all pooled positions, hidden_size] to the tasks. Return the outputs, with those of pooled rows."""
    states = hidden.to(device="cpu", dtype=torch.float32).numpy()
    found, first = list(outputs), 0
    for index, row in enumerate(rows):
        if row.request.params.pooling is None:
            continue
        own = states[first : (first := first + len(pooled_positions(row)))]
        found[index] = _output(row, own)
    return found


def _output(row: BatchRow, states: "np.ndarray[tuple[int, ...], np.dtype[np.float32]]") -> RowOutput:
    if not np.isfinite(states).all():
        return RowOutput(failure=RowFailure(NOT_FINITE))
    row.request.params.pooling.take(row, states)
    return RowOutput(finish_reason="stop") if row.needs_sampling else NO_OUTPUT
