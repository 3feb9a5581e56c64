"""Rehearsal: steps over padding before the first request, for their kernels and for their memory."""

import logging
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ....kernels import ops
from ...core.block_allocator import num_blocks_for
from ...errors import is_out_of_memory
from ..models.forward_inputs import Arrays, Bounds, Inputs, with_plans
from ..sampling.sampler import sample_token_ids
from .cuda_graphs import graph_sizes, mixed_graph_sizes, padding
from .forward_pass import ForwardPass
from .state_arrays import padding_states

_log = logging.getLogger("splitfuse.engine")


class StepLimits(NamedTuple):
    """Largest numbers of a step."""

    max_num_tokens: int
    max_num_seqs: int
    max_model_len: int
    block_size: int
    planner: Any = None  # ops.decode_planner's

    @property
    def table_width(self) -> int:
        """Number of blocks of the longest sequence."""
        return num_blocks_for(self.max_model_len, self.block_size)


def compile_kernels(launch: Callable[[], None], device: torch.device) -> None:
    """Compile the kernels that `launch` launches, side by side."""
    try:
        with ops.compile_ahead(device):
            launch()
    except Exception as exc:
        if is_out_of_memory(exc):
            raise
        _log.exception("not all kernels could be compiled ahead; they are compiled as they are needed")


def rehearse(forward_pass: ForwardPass, model: Any, limits: StepLimits, *, has_graphs: bool) -> None:
    """Launch every kernel of a forward pass and of sampling that a step may launch. `model` is a Decoder.

    The numbers of rows and tokens, the length of rows and the filters of sampling decide which kernels these are.
    """
    longest, num_rows = limits.max_model_len, limits.max_num_seqs
    for size in (*graph_sizes(num_rows), num_rows):
        _sample(model, _forward(forward_pass, limits, padding(size), Bounds(size, 1, longest)))
    sizes = mixed_graph_sizes(limits.max_num_tokens)
    for size in (2, 8, *sizes, limits.max_num_tokens):
        _forward(forward_pass, limits, padding(size, 1), Bounds(0, size, longest))
    for size in sizes if has_graphs else ():
        _forward(forward_pass, limits, padding(size, num_rows + 1), Bounds(None, size, longest))


def rehearse_largest(forward_pass: ForwardPass, model: Any, limits: StepLimits) -> None:
    """Run the steps that take the most memory: of all tokens and rows that a step may have, then sampling."""
    longest, num_tokens, num_rows = limits.max_model_len, limits.max_num_tokens, limits.max_num_seqs
    _forward(forward_pass, limits, padding(num_tokens, num_rows + 1), Bounds(None, num_tokens, longest))
    _sample(model, _forward(forward_pass, limits, padding(num_rows), Bounds(num_rows, 1, longest)))


def _forward(forward_pass: ForwardPass, limits: StepLimits, arrays: Arrays, bounds: Bounds) -> Tensor:
    tables = np.zeros((len(arrays["seq_lens"]), limits.table_width), dtype=np.int32)
    arrays = {**arrays, **padding_states(len(tables)), "block_tables": tables}
    arrays = with_plans(arrays, limits.planner) or arrays
    fields = {name: torch.from_numpy(array).to(forward_pass.device) for name, array in arrays.items()}
    return forward_pass.forward(fields["sources"], Inputs.of(fields, bounds))


def _sample(model: Any, hidden: Tensor) -> None:
    logits, ones = model.logits(hidden), torch.ones(len(hidden), device=hidden.device)
    sample_token_ids(logits, {})  # greedy: in the model's dtype
    fields = {"keys": ones.long(), "temperature": ones}
    logits = logits.float()
    sample_token_ids(logits, fields)
    sample_token_ids(logits, {**fields, "top_k": ones.int(), "top_p": ones, "min_p": ones})
