"""Batch: what one step computes, and RowOutput: what came of a row. Plain data between scheduler and runner."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from .outputs import PromptLogprobs, TokenLogprobs
from .request import Request


class BatchRow(NamedTuple):
    """Tokens [start, start + num_tokens) of one request, to be computed in this step.

    `needs_sampling`: its last token is among them, so the next one is sampled. The last `num_drafts` tokens are drafts
    to be verified: the scheduler decides how many there may be, `with_drafts` fills them in.
    """

    request: Request
    start: int
    num_tokens: int
    needs_sampling: bool
    num_drafts: int = 0
    draft_token_ids: tuple[int, ...] = ()

    @property
    def end(self) -> int:
        """Tokens of the request that are in the cache after the step, drafts among them."""
        return self.start + self.num_tokens

    @property
    def prompt_logprob_positions(self) -> range:
        """Positions of the prompt of which this row computes logprobs; empty for requests without."""
        request = self.request
        if not request.needs_prompt_logprobs:
            return range(0)
        return range(max(self.start, request.num_read_tokens) + 1, min(self.end + 1, request.num_prompt_tokens))

    @property
    def token_ids(self) -> list[int]:
        """The tokens to compute."""
        known = self.request.token_ids[self.start : self.start + self.num_tokens]
        return known + list(self.draft_token_ids) if self.draft_token_ids else known

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


@dataclass(frozen=True)
class Batch:
    """The rows of one step, those with a single token first (the attention kernels want them so).

    `needs_host`: its tokens have to be known on the host before another step can be decided, or its rows need the
    host's part of the sampler. It then runs synchronously.
    """

    step: int
    rows: list[BatchRow]
    moves: Moves = NO_MOVES
    needs_host: bool = False

    @cached_property
    def num_tokens(self) -> int:
        """Tokens in the forward pass."""
        return sum([row.num_tokens for row in self.rows])

    @property
    def num_decode_tokens(self) -> int:
        """Tokens that continue outputs, drafts among them; the others are prompt tokens or recomputed."""
        decodes = [row for row in self.rows if row.start >= row.request.num_prompt_tokens]
        return sum([row.num_tokens for row in decodes if row.num_tokens == 1 + row.num_drafts])

    def subset(self, rows: list[BatchRow]) -> "Batch":
        """The same step for some of its rows only, its moves having been made."""
        return Batch(self.step, rows, needs_host=self.needs_host)


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Why a row's result cannot be used; it costs only its own request. `error_id` is the one in the log.

    `param`: the request's own field at fault, if it is its own fault.
    """

    message: str
    error_id: str | None = None
    param: str | None = None


class RowOutput(NamedTuple):
    """What a step computed for one row.

    `token_ids`: what was sampled: nothing for a row that did not need it, else a token; with drafts, those that agree
    with them and the first that does not, or that comes after all of them. `logprobs`: of each, if requested.
    `finish_reason`: why the output ends with the last of them, if its grammar ends it. `forced_from`: the number of
    output tokens before its forced completion, if that has begun. A `failure` means no tokens.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: str | None = None
    num_drafts: int = 0  # verified
    prompt_logprobs: PromptLogprobs | None = None
    failure: RowFailure | None = None
    forced_from: int | None = None

    def first(self, num_tokens: int) -> "RowOutput":
        """The same with only the first tokens."""
        logprobs = None if self.logprobs is None else self.logprobs[:num_tokens]
        return self._replace(token_ids=self.token_ids[:num_tokens], logprobs=logprobs)


NO_OUTPUT = RowOutput()


class Progress(NamedTuple):
    """What a step did for one request: tokens, its end, or both; the request's finish_reason shows which.

    `gap`: seconds since its tokens before these, None for the first.
    """

    request: Request
    output: RowOutput = NO_OUTPUT
    gap: float | None = None
