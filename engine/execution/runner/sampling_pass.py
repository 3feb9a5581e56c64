"""SamplingPass, the third stage of a step: from hidden states to sampled tokens, under the masks of grammars."""

from typing import Any

from torch import Tensor

from ...device import Stream
from ..sampling.sampler import sample
from ..sampling.token_masks import TokenMasks
from .step import Step


class SamplingPass:
    """Sampling from one model's hidden states."""

    def __init__(
        self,
        model: Any,
        stream: Stream,
        masks: TokenMasks,
        tokens: Tensor | None,
    ) -> None:
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
