"""Batch: what one step computes, as plain data. Made by the scheduler, read by the model runner."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .outputs import PromptLogprobs, TokenLogprobs
from .request import Request


class BatchRow(NamedTuple):
    """Tokens [start, start + num_tokens) of one request, to be computed in this step.

    `samples`: its last known token is among them, so the next one is drawn. The last `num_drafts` tokens are not known:
    they are guesses to be verified. The scheduler says how many there may be; `with_drafts` tells what they are.
    """

    request: Request
    start: int
    num_tokens: int
    samples: bool
    num_drafts: int = 0
    draft_token_ids: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Tokens of the request that are in the cache after the step, drafts among them."""
        return self.start + self.num_tokens

    @property
    def scored(self) -> range:
        """Positions of the prompt whose logprobs this row finds out; most requests want none."""
        request = self.request
        if not request.is_scored:
            return range(0)
        return range(max(self.start, request.num_read_tokens) + 1, min(self.end + 1, request.num_prompt_tokens))

    @property
    def token_ids(self) -> list[int]:
        """The tokens to compute."""
        return self.request.token_ids[self.start : self.end] + list(self.draft_token_ids)

    @property
    def is_decode(self) -> bool:
        """Whether it only continues the output: by one token, and drafts."""
        return self.num_tokens == 1 + self.num_drafts and self.start >= self.request.num_prompt_tokens

    def with_drafts(self, token_ids: Sequence[int]) -> "BatchRow":
        """The row with the drafts that there are, at most as many as were planned."""
        assert len(token_ids) <= self.num_drafts
        num_tokens = self.num_tokens - self.num_drafts + len(token_ids)
        return self._replace(num_tokens=num_tokens, num_drafts=len(token_ids), draft_token_ids=tuple(token_ids))


class Moves(NamedTuple):
    """Blocks to copy before the step computes, as (from, to), in this order of kinds."""

    swap_out: list[tuple[int, int]]  # device → host
    swap_in: list[tuple[int, int]]  # host → device
    copies: list[tuple[int, int]]  # device → device


NO_MOVES = Moves([], [], [])


@dataclass(frozen=True, slots=True)
class Batch:
    """The rows of one step, those with a single token first (the attention kernels want them so)."""

    step: int
    rows: list[BatchRow]
    moves: Moves = NO_MOVES

    @property
    def num_tokens(self) -> int:
        """Tokens in the forward pass."""
        return sum(row.num_tokens for row in self.rows)

    @property
    def num_decode_tokens(self) -> int:
        """Tokens that continue outputs, drafts among them; the others are prompt tokens or recomputed."""
        return sum(row.num_tokens for row in self.rows if row.is_decode)

    def subset(self, rows: list[BatchRow]) -> "Batch":
        """The same step for some of its rows only, its moves having been made."""
        return Batch(self.step, rows)


class SampledToken(NamedTuple):
    """The token drawn for a row. `finish_reason`: why the output ends with it, if it is its grammar that ends it."""

    token_id: int
    logprobs: TokenLogprobs | None = None
    finish_reason: str | None = None


@dataclass(frozen=True, slots=True)
class RowFailure:
    """A row whose result cannot be used, and why; it costs only its own request. `error_id` stands in the log.

    `param`: the request's own field at fault, if it is its own fault.
    """

    message: str
    error_id: str | None = None
    param: str | None = None


class SampledRun(NamedTuple):
    """The tokens drawn for a row with drafts: those that agree with the drafts, and the first that does not or that
    comes after all of them.
    """

    tokens: tuple[SampledToken, ...]
    num_drafts: int


# What the scheduler is told of a row: a token or several, why there is none, or None where nothing was to be drawn.
RowResult = SampledToken | SampledRun | RowFailure | None


class ScoredRow(NamedTuple):
    """The result of a row that also scored prompt tokens, and their logprobs."""

    result: SampledToken | SampledRun | None
    logprobs: PromptLogprobs


# What the runner gives back for a row.
RunResult = RowResult | ScoredRow
