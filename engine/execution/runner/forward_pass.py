"""ForwardPass, the second stage of a step: from tokens to hidden states, perhaps by a CUDA graph."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from ...device import Stream
from ..models.forward_inputs import Inputs
from ..models.kv_cache import KVCache
from .step import Step


class Ranks:
    """Other processes with shares of the model: once told, they do the work of a block, too. Here there are none."""

    def forward(self, step: Step) -> AbstractContextManager[None]:
        """Tell them of a forward pass."""
        return nullcontext()

    def capture(self, size: int, *, is_mixed: bool) -> AbstractContextManager[None]:
        """Tell them of the capture of a graph."""
        return nullcontext()


class ForwardPass:
    """Forward passes of one model over one cache."""

    def __init__(
        self, model: Any, cache: KVCache, stream: Stream, *, device: torch.device, tokens: Tensor | None, ranks: Ranks
    ) -> None:
        """`model` is a Decoder; tokens [most samples of a step] int64 hold the last step's samples on the device."""
        self.device = device
        self._model = model
        self._cache = cache
        self._stream = stream
        self._tokens = tokens
        self._ranks = ranks

    def run(self, step: Step) -> None:
        """Queue the forward pass of a step."""
        with self._ranks.forward(step):
            self._stream.run(lambda: self._compute(step))

    def _compute(self, step: Step) -> None:
        if step.graph is None:
            step.hidden = self.forward(step.fields.get("sources"), step.inputs)
        else:
            step.hidden = step.graph.replay(step.fields["block_tables"])[: step.num_logits]

    def forward(self, sources: Tensor | None, inputs: Inputs) -> Tensor:
        """Return hidden states [L, hidden_size]. `sources`: the array of `token_sources`; None if all are known."""
        if sources is not None:
            self._fill_in(inputs.token_ids, sources)
        return self._model.forward(inputs, self._cache)  # type: ignore[no-any-return]

    def _fill_in(self, token_ids: Tensor, sources: Tensor) -> None:
        """Fill in the tokens that the last step sampled. A failed row has no token; its next output is dropped."""
        assert self._tokens is not None
        own = token_ids[: len(sources)]
        sampled = self._tokens.index_select(0, sources.clamp_min(0)).clamp_min_(0)
        own.copy_(torch.where(sources >= 0, sampled, own))
