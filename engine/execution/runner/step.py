"""Step: a batch on its way through the four stages of a runner: prepare, forward, sample, collect."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from ...core.batch import BatchRow
from ..models.forward_inputs import Arrays, Inputs
from ..sampling.sampled import Sampled
from ..sampling.samples import Samples
from .transfer import HostBuffer

if TYPE_CHECKING:
    from .cuda_graphs import StepGraph


@dataclass(slots=True, eq=False)
class Step:
    """Step of one batch, made by Preparation. ForwardPass fills in `hidden`, SamplingPass `sampled`."""

    rows: list[BatchRow]
    samples: Samples
    # L: rows of samples, then of prompt logprobs (one token earlier), then of pooled tokens. Collection reads the
    # hidden states after the samples' rows
    num_logits: int
    inputs: Inputs  # read by the model; a graph has its own
    fields: dict[str, Tensor]  # all arrays of the batch and its samples, on the device
    host: HostBuffer | None  # memory that the device copies from and to until the step has ended
    graph: "StepGraph | None"
    feeds_next: bool  # the next step is launched before this one's tokens are known
    hidden: Tensor | None = None  # [L, hidden_size]
    sampled: Sampled | None = None
    arrays: tuple[Arrays, Arrays] = ({}, {})  # arrays on the host: in the step's buffer, and others
