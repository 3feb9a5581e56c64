"""Logits of a whole sequence from the engine's own model, which otherwise computes only the sampled rows."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.execution.models.resolved_model import resolve
from splitfuse.engine.extras.bench import divergence
from splitfuse.engine.extras.bench.divergence import BLOCK_SIZE as BLOCK_SIZE
from splitfuse.engine.extras.bench.divergence import turn_about as turn_about
from splitfuse.engine.serving.loading import load_runner


def all_logits(folder: Path, token_ids: list[int], *, chunks: list[int], **settings: Any) -> Tensor:
    """Return logits [T, vocab_size] in float32; the model gets the sequence in chunks of these lengths."""
    assert sum(chunks) == len(token_ids)
    num_blocks = -(-len(token_ids) // BLOCK_SIZE)
    config = EngineConfig(model=str(folder), device="cpu", num_kv_blocks=num_blocks, block_size=BLOCK_SIZE, **settings)
    runner = load_runner(resolve(config, folder))
    return torch.cat([*divergence.all_logits(runner, token_ids, chunks=chunks)])
