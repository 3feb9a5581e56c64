"""Stages: the four stages of a step, over one model and one cache."""

from typing import Any

import torch
from torch import Tensor

from ...device import Stream
from ..models.kv_cache import KVCache
from ..sampling.sampler import Sampler
from .forward_pass import ForwardPass, Ranks
from .graph_set import GraphSet
from .pending_outputs import Collection
from .preparation import Preparation
from .sampling_pass import SamplingPass
from .transfer import Transfer


class Stages:
    """Preparation, forward pass, sampling pass and collection; steps pass through them in this order."""

    def __init__(
        self,
        model: Any,
        cache: KVCache,
        *,
        device: torch.device,
        stream: Stream,
        transfer: Transfer,
        sampler: Sampler,
        tokens: Tensor | None = None,
        planner: Any = None,
        is_exact: bool = False,
        ranks: Ranks | None = None,
    ) -> None:
        """`model` is a Decoder or a ParallelModel.

        tokens [most samples of a step] int64: a step's tokens, which stay on the device and feed the next step.
        `planner`: ops.decode_planner's. `is_exact`: see `ops.be_exact`.
        """
        self.graphs = GraphSet(stream, ranks or Ranks())
        self.preparation = Preparation(
            transfer,
            sampler.processors,
            self.graphs,
            block_size=cache.block_size,
            vocab_size=model.config.vocab_size,
            planner=planner,
            device=device,
            is_exact=is_exact,
        )
        self.forward_pass = ForwardPass(model, cache, stream, device=device, tokens=tokens, ranks=ranks or Ranks())
        self.sampling_pass = SamplingPass(model, stream, sampler.masks, tokens)
        self.collection = Collection(model, stream, device)
