"""Layers of two models, compared by the residual stream behind each: one pass of either model names the first that
differs.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ....kernels.ops import RaggedBatch
from ...execution.models.forward_inputs import Inputs
from .divergence import BLOCK_SIZE, new_runner, turn_about


def first_layer(
    names: Sequence[str], settings: Sequence[Mapping[str, Any]], token_ids: list[int], *, tolerance: float
) -> dict[str, Any]:
    """Return the first layer behind which the last token's stream differs by more than `tolerance` of its length.

    Runs on the CPU. Raises ConfigError.
    """
    ours, theirs = (_streams(name, own, token_ids) for name, own in zip(names, settings, strict=True))
    if len(ours) != len(theirs):
        return {"number": None, "text": f"the models have {len(ours)} and {len(theirs)} layers"}
    differences = [float((x - y).norm() / x.norm().clamp_min(1e-30)) for x, y in zip(ours, theirs, strict=True)]
    number = next((number for number, one in enumerate(differences) if one > tolerance), None)
    known = {"number": number, "num_layers": len(ours), "differences": differences}
    if number is None:
        return {**known, "text": f"no layer's output differs by more than {tolerance:.1%}; {max(differences):.2%} most"}
    text = f"layer {number} of {len(ours)} is the first whose output differs by more than {tolerance:.1%}"
    return {**known, "text": f"{text}: by {differences[number]:.1%}"}


@torch.inference_mode()
def _streams(name: str, settings: Mapping[str, Any], token_ids: list[int]) -> list[Tensor]:
    runner = new_runner(name, longest=len(token_ids), **settings)
    positions = torch.arange(len(token_ids))
    ragged = RaggedBatch(
        query_start_loc=torch.tensor([0, len(token_ids)], dtype=torch.int32),
        seq_lens=torch.tensor([len(token_ids)], dtype=torch.int32),
        block_tables=torch.arange(-(-len(token_ids) // BLOCK_SIZE), dtype=torch.int32)[None],
        num_decodes=int(len(token_ids) == 1),
        max_query_len=len(token_ids),
        max_seq_len=len(token_ids),
    )
    states = None if runner.loaded.states is None else turn_about(0)
    inputs = Inputs(torch.tensor(token_ids), positions, positions, ragged, positions[-1:], states)
    streams: list[Tensor] = runner.model.streams(inputs, runner.cache)
    runner.close()
    return streams
