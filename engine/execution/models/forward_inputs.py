"""Inputs: tensors that one forward pass over a ragged batch reads."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from ....kernels.ops import RaggedBatch, StateBatch

STATE_FIELDS = tuple(f"state_{name}" for name in StateBatch._fields)
Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]


class Bounds(NamedTuple):
    """Numbers of a batch that the host needs to launch its kernels, as in RaggedBatch."""

    num_decodes: int | None
    max_query_len: int
    max_seq_len: int


class Inputs(NamedTuple):
    """Inputs of one forward pass over T tokens of B rows; L of the tokens need logits."""

    token_ids: Tensor  # [T] int64
    positions: Tensor  # [T] int64
    slot_mapping: Tensor  # [T] int64, block · block_size + offset
    ragged: RaggedBatch
    # [L] int64, indices into T: the last known token and the drafts of each row that samples, then the token before
    # each prompt logprob, then each pooled token
    logits_indices: Tensor
    states: StateBatch | None = None  # None: no layer is recurrent
    adapter_tiles: Tensor | None = None  # tiles for `ops.add_adapters`; None: no row has an adapter

    @classmethod
    def of(cls, fields: Mapping[str, Tensor], bounds: Bounds) -> "Inputs":
        """Gather the inputs from tensors named like the fields of Inputs and RaggedBatch, and STATE_FIELDS."""
        plans = {name: field for name, field in fields.items() if name.startswith("plan_")}
        return cls(
            fields["token_ids"],
            fields["positions"],
            fields["slot_mapping"],
            RaggedBatch(fields["query_start_loc"], fields["seq_lens"], fields["block_tables"], *bounds, plans or None),
            fields["logits_indices"],
            StateBatch(*(fields[name] for name in STATE_FIELDS)) if "state_sources" in fields else None,
            fields.get("adapter_tiles"),
        )


def select(rows: Tensor | None, x: Tensor, residual: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Take these rows of both; None: all. index_select takes 3.3 us for 64 rows of 1024 in bfloat16, x[...] 10.9."""
    if rows is None:
        return x, residual
    return x.index_select(0, rows), None if residual is None else residual.index_select(0, rows)


def with_plans(arrays: Arrays, planner: Any, **options: bool) -> Arrays | None:
    """Add the work lists of a GPU's decodes (ops.decode_planner); None if they would be larger than a graph's."""
    plans = {} if planner is None else planner(arrays["query_start_loc"], arrays["seq_lens"], **options)
    return None if plans is None else {**arrays, **plans}
