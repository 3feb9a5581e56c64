"""Beams of one prompt: which candidates go on, which are finished, and when nothing can improve any more.

The rules are transformers' with early_stopping=False: the same beams are kept, in the same order.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from ...core.outputs import TokenLogprobs
from .params import BeamSearchParams


@dataclass(frozen=True, slots=True)
class Beam:
    """Output of a search. `logprob`: sum over its tokens. `end_token`: the model's, if one ended the output."""

    token_ids: tuple[int, ...] = ()
    logprob: float = 0.0
    logprobs: tuple[TokenLogprobs, ...] = ()
    end_token: int | None = None
    score: float = 0.0  # logprob after the length penalty, once the beam has ended


class Beams:
    """Running and finished beams of one prompt."""

    def __init__(self, params: BeamSearchParams, end_tokens: Collection[int]) -> None:
        self._params = params
        self._end_tokens = end_tokens
        self._num_candidates = params.num_candidates(len(end_tokens))
        self.running = [Beam()]
        self.finished: list[Beam] = []  # best first, at most beam_width

    def advance(self, positions: Sequence[TokenLogprobs]) -> None:
        """Extend the running beams by one token; `positions` has the next token's logprobs of each."""
        width = self._params.beam_width
        candidates = sorted(self._candidates(positions), key=attrgetter("logprob"), reverse=True)
        running: list[Beam] = []
        for rank, beam in enumerate(candidates[: self._num_candidates]):
            if beam.end_token is None and len(beam.token_ids) < self._params.max_tokens:
                running.append(beam)
            elif rank < width:
                self.finished.append(replace(beam, score=self._score(beam)))
        self.finished = sorted(self.finished, key=attrgetter("score"), reverse=True)[:width]
        self.running = running[:width] if self._can_improve(running) else []

    def _candidates(self, positions: Sequence[TokenLogprobs]) -> Iterator[Beam]:
        for beam, position in zip(self.running, positions, strict=True):
            for token_id, logprob in position.top:
                yield Beam(
                    (*beam.token_ids, token_id),
                    beam.logprob + logprob,
                    (
                        *beam.logprobs,
                        replace(position, token_id=token_id, logprob=logprob, rank=position[token_id].rank),
                    ),
                    token_id if token_id in self._end_tokens else None,
                )

    def _can_improve(self, running: Sequence[Beam]) -> bool:
        """True unless `beam_width` beams have finished, and the best running one would not be among them now."""
        if len(self.finished) < self._params.beam_width:
            return True
        return bool(running) and self._score(running[0]) > self.finished[-1].score

    def _score(self, beam: Beam) -> float:
        return float(beam.logprob / len(beam.token_ids) ** self._params.length_penalty)
