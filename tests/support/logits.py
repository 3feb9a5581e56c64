"""Logits of a whole sequence from the engine's own model, which otherwise computes only the sampled rows."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.execution.models.forward_inputs import Inputs
from splitfuse.engine.execution.models.resolved_model import resolve
from splitfuse.engine.serving.loading import load_runner
from splitfuse.kernels.ops import RaggedBatch, StateBatch

BLOCK_SIZE = 16


@torch.inference_mode()
def all_logits(folder: Path, token_ids: list[int], *, chunks: list[int], **settings: Any) -> Tensor:
    """Return logits [T, vocab_size] in float32; the model gets the sequence in chunks of these lengths."""
    assert sum(chunks) == len(token_ids)
    num_blocks = -(-len(token_ids) // BLOCK_SIZE)
    config = EngineConfig(model=str(folder), device="cpu", num_kv_blocks=num_blocks, block_size=BLOCK_SIZE, **settings)
    runner = load_runner(resolve(config, folder))
    logits, start = [], 0
    for number, length in enumerate(chunks):
        end = start + length
        ragged = RaggedBatch(
            query_start_loc=torch.tensor([0, length], dtype=torch.int32),
            seq_lens=torch.tensor([end], dtype=torch.int32),
            block_tables=torch.arange(num_blocks, dtype=torch.int32)[None],
            num_decodes=int(length == 1),
            max_query_len=length,
            max_seq_len=end,
        )
        positions = torch.arange(start, end)
        states = None if runner.loaded.states is None else turn_about(number)
        inputs = Inputs(torch.tensor(token_ids[start:end]), positions, positions, ragged, torch.arange(length), states)
        logits.append(runner.model.logits(runner.model.forward(inputs, runner.cache)).float())
        start = end
    return torch.cat(logits)


def turn_about(number: int) -> StateBatch:
    """Return the slots of a sequence's chunk of this number: two slots, read and written by turns."""
    fields = ([number % 2 if number else -1], [(number + 1) % 2], [0], [0], [0, 0], [], [])
    return StateBatch(*(torch.tensor(field, dtype=torch.int32) for field in fields))
