"""Preparation, the first stage of a step: lists on the host all that the device reads, and sends it there."""

from collections.abc import Mapping
from typing import Any

import torch

from ....kernels import ops
from ...core.batch import Batch
from ...core.request import Request
from ..models.forward_inputs import Arrays, Inputs, with_plans
from ..sampling.logits_processors import LogitsProcessors
from ..sampling.samples import list_samples
from .batch_arrays import lay_out, token_sources
from .graph_set import GraphSet
from .state_arrays import state_arrays
from .step import Step
from .transfer import Transfer


class Preparation:
    """Maker of steps. For one thread."""

    def __init__(
        self,
        transfer: Transfer,
        processors: LogitsProcessors,
        graphs: GraphSet,
        *,
        block_size: int,
        vocab_size: int,
        device: torch.device,
        is_exact: bool,
        planner: Any = None,
    ) -> None:
        """`is_exact`: see `ops.be_exact`. `planner`: ops.decode_planner's."""
        self._device, self._is_exact = device, is_exact
        self._transfer = transfer
        self._processors = processors
        self._graphs = graphs
        self._block_size = block_size
        self._vocab_size = vocab_size
        self._planner = planner

    def prepare(self, batch: Batch, sample_indices: Mapping[Request, int] | None = None) -> Step:
        """Lay a batch out and send it to the device, padded if a graph serves it.

        `sample_indices`: indices at which the step in flight samples its requests' tokens, if the host may not know
        them; None if all tokens are known.
        """
        ops.be_exact(self._device, self._is_exact)  # a step's: engines of this process may differ
        arrays, bounds = lay_out(batch.rows, block_size=self._block_size)
        arrays |= state_arrays(batch.rows)
        if adapter := next((a for row in batch.rows if (a := row.request.params.adapter) is not None), None):
            arrays |= adapter.arrays(batch.rows)
        num_logits = len(arrays["logits_indices"])
        if sample_indices is not None:
            arrays["sources"] = token_sources(batch.rows, sample_indices)
        rows = [row for row in batch.rows if row.needs_sampling and row.request.params.pooling is None]
        samples = list_samples(rows, self._processors, vocab_size=self._vocab_size)
        graph = self._graphs.find(num_tokens=batch.num_tokens, num_rows=len(batch.rows), num_logits=num_logits)
        padded = None if graph is None else graph.pad(arrays)
        if padded is None:
            graph, padded = None, with_plans(arrays, self._planner)
        plans: Arrays = {}
        if padded is None:  # work lists larger than a step's memory
            padded, plans = arrays, self._planner(arrays["query_start_loc"], arrays["seq_lens"], is_fixed=False)
        fields, host = self._transfer.send({**padded, **samples.arrays}, {**samples.more, **plans})
        return Step(
            batch.rows,
            samples,
            num_logits,
            Inputs.of(fields, bounds),
            fields,
            host,
            graph,
            feeds_next=sample_indices is not None,
            arrays=(padded, plans),
        )
