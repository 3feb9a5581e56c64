"""Replays: outputs that are expected, drafted token by token, so that a pass over them says if they follow.

A draft is accepted if plain decoding would sample the same token there (`sampling/acceptance.py`): from the logits and
tokens before it, under the request's penalties, bias, filters and grammar, with the noise of its seed and position. So
an expected output is verified by the steps of the scheduler, in chunks beside other requests, and no rule stands twice.
"""

from collections.abc import Sequence
from typing import Any

from ...core.batch import Batch, RowOutput
from ...core.ports import Drafted, Speculator
from ...core.request import Request
from ...serving.engine_part import Assembly, EnginePart, ServedModel

# Logits of one request and step: 64 MiB of float32, as for prompt logprobs.
_NUM_LOGITS = 2**24


class Replaying(EnginePart):
    """Part of an engine: the outputs that its verifications expect."""

    def __init__(self, model: ServedModel) -> None:
        super().__init__(model)
        self.replays = Replays(vocab_size=model.runner.loaded.model_config.vocab_size)

    def speculator(self, speculator: Speculator, assembly: Assembly) -> Speculator:
        return self.replays.over(speculator)


class Replays(Speculator):
    """Speculator whose drafts are the outputs that requests are expected to have. Other steps are `inner`'s."""

    def __init__(self, *, vocab_size: int) -> None:
        self.inner = Speculator()
        self._vocab_size = vocab_size
        self._max_drafts = max(1, _NUM_LOGITS // vocab_size)
        self._expected: dict[Request, Sequence[int]] = {}
        self._inner_skips = True
        self._drafts_here = False  # True if the step in flight has drafts of ours

    def over(self, inner: Speculator) -> "Replays":
        """Return this object, with the speculator of all other steps."""
        self.inner = inner
        return self

    def expect(self, requests: Sequence[Request], outputs: Sequence[Sequence[int]]) -> None:
        """Note the expected tokens of each output of a request, which has not begun."""
        for request in requests:
            self._expected[request] = outputs[request.index]

    def skips_step(self) -> bool:
        """Like Speculator."""
        self._inner_skips = self.inner.skips_step()
        return self._inner_skips and not self._expected

    def choose(self, running: Sequence[Request]) -> dict[Request, int]:
        """Like Speculator, but the inner one drafts only in steps without expected outputs."""
        chosen = {request: num for request in running if (num := self._num_drafts(request))} if self._expected else {}
        self._drafts_here = bool(chosen) or self._inner_skips
        if self._drafts_here:
            return chosen
        return self.inner.choose(running)

    def _num_drafts(self, request: Request) -> int:
        """Return the number of tokens to draft: one token comes after the last of them."""
        expected = self._expected.get(request)
        if expected is None or request.num_uncomputed_tokens != 1:
            return 0
        return max(0, min(len(expected) - request.num_output_tokens - 1, self._max_drafts))

    def draft(self, batch: Batch) -> Batch:
        """Like Speculator."""
        if not self._drafts_here:
            return self.inner.draft(batch)
        planned = ((row.request, row.num_drafts) for row in batch.rows if row.num_drafts)
        return batch.with_drafts({request: self._next(request, count) for request, count in planned})

    def _next(self, request: Request, count: int) -> Sequence[int]:
        """Return the next expected tokens, up to the first one outside of the vocabulary."""
        first = request.num_output_tokens
        token_ids = self._expected.get(request, ())[first : first + count]
        unknown = next((i for i, token_id in enumerate(token_ids) if not 0 <= token_id < self._vocab_size), count)
        return token_ids[:unknown]

    def observe(self, batch: Batch, outputs: Sequence[RowOutput], seconds: float) -> list[Drafted]:
        """Like Speculator."""
        if not self._drafts_here:
            return self.inner.observe(batch, outputs, seconds)
        return [Drafted(output.num_drafts, len(output.token_ids) - 1) for output in outputs if output.num_drafts]

    def forget(self, request: Request) -> None:
        """Like Speculator."""
        self._expected.pop(request, None)
        self.inner.forget(request)

    def forget_ended(self) -> None:
        """Like Speculator."""
        self.inner.forget_ended()

    def to_dict(self) -> dict[str, Any] | None:
        """Return the counts of the inner speculator; None without one."""
        return self.inner.to_dict()
