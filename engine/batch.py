"""Batch: what one step computes, as plain data. Made by the scheduler, read by the model runner."""

from dataclasses import dataclass
from typing import NamedTuple

from .outputs import PromptLogprobs, TokenLogprobs
from .request import Request


class BatchRow(NamedTuple):
    """Tokens [start, start + num_tokens) of one request, to be computed in this step.

    `samples`: these are its last known tokens, so the next one is drawn.
    """

    request: Request
    start: int
    num_tokens: int
    samples: bool

    @property
    def end(self) -> int:
        """Tokens of the request that are in the cache after the step."""
        return self.start + self.num_tokens

    @property
    def scored(self) -> range:
        """Positions of the prompt whose logprobs this row finds out; most requests want none."""
        request = self.request
        if not request.is_scored:
            return range(0)
        return range(max(self.start, request.num_read_tokens) + 1, min(self.end + 1, request.num_prompt_tokens))

    @property
    def is_decode(self) -> bool:
        """Whether it only continues the output by one token."""
        return self.num_tokens == 1 and self.start >= self.request.num_prompt_tokens


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
        """Tokens that continue outputs; the others are prompt tokens or recomputed."""
        return sum(row.is_decode for row in self.rows)

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


# What the scheduler is told of a row: a token, why there is none, or None where nothing was to be drawn.
RowResult = SampledToken | RowFailure | None


class ScoredRow(NamedTuple):
    """The result of a row that also scored prompt tokens, and their logprobs."""

    result: SampledToken | None
    logprobs: PromptLogprobs


# What the runner gives back for a row.
RunResult = RowResult | ScoredRow
