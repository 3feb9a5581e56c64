"""PoolingTask: one pooled request's hidden states on their way to its result."""

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.batch import BatchRow

Array = np.ndarray[Any, np.dtype[np.float32]]


class PoolingTask:
    """Hidden states [kept positions, hidden_size] float32 of one request, then its result.

    Every position has its place, so a row that is computed again, by whatever cut, writes equal numbers there. Only the
    step's thread writes; `result` is there when the request has ended.
    """

    def __init__(self, pooling_type: str, finish: Callable[[Array], Array]) -> None:
        """`pooling_type`: LAST, CLS, MEAN or ALL. `finish` makes the result of the pooled states."""
        self._pooling_type = pooling_type
        self._finish = finish
        self._states: Array | None = None  # unless the type is LAST
        self.result: Array | None = None

    @property
    def needs_all(self) -> bool:
        """True if the states of all positions are needed, so that no cached prefix may replace their computation."""
        return self._pooling_type in ("MEAN", "ALL", "CLS")

    def positions(self, row: BatchRow) -> range:
        """Return the positions of the row whose hidden states are needed."""
        if self._pooling_type == "LAST":
            return range(row.end - 1, row.end) if row.needs_sampling else range(0)
        if self._pooling_type == "CLS":  # the last row has a state too, by which its end is known
            return range(1) if not row.start else range(row.end - 1, row.end) if row.needs_sampling else range(0)
        return range(row.start, row.end)

    def take(self, row: BatchRow, states: Array) -> None:
        """Keep the states [positions, hidden_size]; the last row makes the result."""
        if self._pooling_type == "LAST":
            if row.needs_sampling:
                self.result = self._finish(states[0])
            return
        if self._pooling_type != "CLS" or not row.start:
            if self._states is None:
                num_kept = 1 if self._pooling_type == "CLS" else row.request.num_prompt_tokens
                self._states = np.empty((num_kept, states.shape[1]), dtype=np.float32)
            self._states[row.start : row.start + len(states)] = states
        if row.needs_sampling:
            assert self._states is not None, "the first row has states"
            self.result = self._finish(self._pooled(self._states))
            self._states = None

    def _pooled(self, states: Array) -> Array:
        if self._pooling_type == "ALL":
            return states
        # The mean of CLS's only state is this state. float64 holds the sum of a million.
        mean: Array = states.mean(axis=0, dtype=np.float64).astype(np.float32)
        return mean
