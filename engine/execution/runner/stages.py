"""Stages: the four stages of a step, over one model and one cache, and the third of them, SamplingPass."""

from typing import Any

import torch
from torch import Tensor

from ...device import Stream
from ..models.kv_cache import KVCache
from ..sampling.sampler import Sampler, sample
from ..sampling.token_masks import TokenMasks
from .forward_pass import ForwardPass, Ranks
from .graph_set import GraphSet
from .pending_outputs import Collection
from .preparation import Preparation
from .step import Step
from .transfer import Transfer


class SamplingPass:
    """Sampling from one model's hidden states."""

    def __init__(self, model: Any, stream: Stream, masks: TokenMasks, tokens: Tensor | None) -> None:
        """`model` is a Decoder; tokens [most samples of a step] int64 keep a step's samples for the next step."""
        self._model = model
        self._stream = stream
        self._masks = masks
        self._tokens = tokens

    def run(self, step: Step) -> None:
        """Make the grammars' masks while the device computes, and queue the sampling.

        The host knows every token before the sampled positions.
        """
        if step.samples.constrained:
            step.fields |= self._masks.of_rows(step.samples.constrained, forces=step.feeds_next)
        if step.samples.requests:
            self._stream.run(lambda: self._sample(step))

    def _sample(self, step: Step) -> None:
        assert step.hidden is not None
        samples, fields, last_token_ids = step.samples, step.fields, None
        if step.feeds_next and not samples.is_plain:
            last_token_ids = fields["token_ids"].index_select(0, fields["logits_indices"][: len(samples.requests)])
        logits = self._model.logits(step.hidden[: len(samples.requests)])
        step.sampled = sample(logits, fields, num_top=samples.num_top, last_token_ids=last_token_ids)
        if self._tokens is not None:
            self._tokens[: len(samples.requests)].copy_(step.sampled.token_ids)


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
        self.sampling_pass = SamplingPass(model, stream, sampler.masks, tokens)
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
        self.collection = Collection(model, stream, device)
