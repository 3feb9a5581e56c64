"""State arrays: the slots of a batch's recurrent states, as the arrays of StateBatch. Beside `lay_out`'s arrays."""

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from ...core.batch import BatchRow
from ..models.forward_inputs import STATE_FIELDS, Arrays


def state_arrays(rows: Sequence[BatchRow]) -> Arrays:
    """Return the arrays of a batch, named by STATE_FIELDS; none for a model without recurrent layers."""
    places = [row.beside for row in rows if row.beside is not None]
    if not places:
        return {}
    assert len(places) == len(rows)
    checkpoints = [checkpoint for place in places for checkpoint in place.checkpoints]
    values = (
        [place.source for place in places],
        [place.target for place in places],
        [place.num_replayed for place in places],
        [row.num_drafts for row in rows],
        list(accumulate((len(place.checkpoints) for place in places), initial=0)),
        [num_tokens for num_tokens, _ in checkpoints],
        [slot for _, slot in checkpoints],
    )
    return {name: np.array(value, dtype=np.int32) for name, value in zip(STATE_FIELDS, values, strict=True)}


def padding_states(num_rows: int, max_checkpoints: int = 0) -> Arrays:
    """Return the arrays of rows that read no state and write none, with room for these checkpoints."""
    none, zeros = np.full(num_rows, -1, dtype=np.int32), np.zeros(num_rows + 1, dtype=np.int32)
    room = np.zeros(max_checkpoints, dtype=np.int32)
    values = (none, none, zeros[:-1], zeros[:-1], zeros, room, room)
    return dict(zip(STATE_FIELDS, values, strict=True))


def largest_states(num_rows: int, num_tokens: int) -> Arrays:
    """Return arrays of the sizes that a step's can have; no page of them is touched."""
    sizes = (*[num_rows + 1] * 5, *[num_rows + num_tokens] * 2)
    return {name: np.empty(size, dtype=np.int32) for name, size in zip(STATE_FIELDS, sizes, strict=True)}
