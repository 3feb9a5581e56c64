"""Rows of a batch sampled from these logits: the last two stages of a step, with the logits in the model's place."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from splitfuse.engine.core.batch import BatchRow, RowOutput
from splitfuse.engine.device import ImmediateStream
from splitfuse.engine.execution.runner.pending_outputs import Collection
from splitfuse.engine.execution.runner.stages import SamplingPass
from splitfuse.engine.execution.runner.step import Step
from splitfuse.engine.execution.runner.transfer import DirectTransfer
from splitfuse.engine.execution.sampling.sampler import Sampler
from splitfuse.engine.execution.sampling.samples import list_samples

CPU = torch.device("cpu")


def sample_rows(logits: Tensor, rows: Sequence[BatchRow]) -> list[RowOutput]:
    """Return the outputs of rows; logits [S, V] for each row that samples, one more than it has drafts; overwritten."""
    model = SimpleNamespace(config=SimpleNamespace(vocab_size=logits.shape[1]), logits=lambda hidden: hidden)
    stream, sampler = ImmediateStream(), Sampler(CPU)
    sampling = [row for row in rows if row.needs_sampling]
    samples = list_samples(sampling, sampler.processors, vocab_size=logits.shape[1])
    fields, host = DirectTransfer(CPU).send(samples.arrays, samples.more)
    inputs: Any = None  # of the stage before
    step = Step(list(rows), samples, len(logits), inputs, fields, host, None, feeds_next=False, hidden=logits)
    SamplingPass(model, stream, sampler.masks, None).run(step)
    return Collection(model, stream, CPU).collect(step).wait()
