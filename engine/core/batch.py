"""Batch: the rows that one step computes, and RowOutput: the result of a row. Plain data for scheduler and runner."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from .outputs import PromptLogprobs, TokenLogprobs
from .request import Request


class BatchRow(NamedTuple):
    """Tokens [start, start + num_tokens) of one request, to be computed in this step.

    `needs_sampling`: the request's last token is among them, so the next one is sampled. The last `num_drafts` tokens
    are drafts to be verified: the scheduler decides on their number, `with_drafts` fills them in.
    """

    request: Request
    start: int
    num_tokens: int
    needs_sampling: bool
    num_drafts: int = 0
    draft_token_ids: tuple[int, ...] = ()
    beside: Any = None  # places of the request's BlockCompanion, for the runner

    @property
    def end(self) -> int:
        """Number of the request's tokens in the cache after the step, drafts among them."""
        return self.start + self.num_tokens

    @property
    def prompt_logprob_positions(self) -> range:
        """Positions of the prompt whose logprobs this row computes; empty for a request that wants none."""
        request = self.request
        if not request.needs_prompt_logprobs:
            return range(0)
        return range(max(self.start, request.num_read_tokens) + 1, min(self.end + 1, request.num_prompt_tokens))

    @property
    def token_ids(self) -> list[int]:
        """Tokens to compute."""
        known = self.request.token_ids[self.start : self.start + self.num_tokens]
        return known + list(self.draft_token_ids) if self.draft_token_ids else known

    @property
    def is_decode(self) -> bool:
        """True if the row only continues the output, by one token and drafts."""
        return self.num_tokens == 1 + self.num_drafts and self.start >= self.request.num_prompt_tokens

    def with_drafts(self, token_ids: Sequence[int]) -> "BatchRow":
        """Return the row with these drafts, at most `num_drafts`."""
        assert len(token_ids) <= self.num_drafts
        num_tokens = self.num_tokens - self.num_drafts + len(token_ids)
        return self._replace(num_tokens=num_tokens, num_drafts=len(token_ids), draft_token_ids=tuple(token_ids))


class Moves(NamedTuple):
    """Blocks to copy before the step computes, as (from, to), in the order of the fields."""

    swap_out: list[tuple[int, int]]  # device → host
    swap_in: list[tuple[int, int]]  # host → device
    copies: list[tuple[int, int]]  # device → device
    beside: "Moves | None" = None  # moves of a BlockCompanion's memory


NO_MOVES = Moves([], [], [])


@dataclass(frozen=True)
class Batch:
    """Rows of one step, single-token rows first (the attention kernels want this order).

    `needs_host`: the step runs synchronously, because the next one cannot be decided before the host knows its tokens,
    or because its rows need the host's part of the sampler.
    """

    step: int
    rows: list[BatchRow]
    moves: Moves = NO_MOVES
    needs_host: bool = False

    @cached_property
    def num_tokens(self) -> int:
        """Number of tokens in the forward pass."""
        return sum([row.num_tokens for row in self.rows])

    @property
    def num_decode_tokens(self) -> int:
        """Number of tokens that continue outputs, drafts among them. All others are prompt tokens or recomputed."""
        decodes = [row for row in self.rows if row.start >= row.request.num_prompt_tokens]
        return sum([row.num_tokens for row in decodes if row.num_tokens == 1 + row.num_drafts])

    def with_drafts(self, drafts: Mapping[Request, Sequence[int]]) -> "Batch":
        """Return the batch with these drafts in the rows that plan some, rows of one token first."""
        rows = [row.with_drafts(drafts.get(row.request, ())) if row.num_drafts else row for row in self.rows]
        return self.subset(sorted(rows, key=lambda row: row.num_tokens > 1))

    def subset(self, rows: list[BatchRow]) -> "Batch":
        """Return the same step with some of its rows, after its moves were made."""
        return Batch(self.step, rows, needs_host=self.needs_host)


@dataclass(frozen=True, slots=True)
class RowFailure:
    """Failure of one row, which ends only the row's request. `error_id` is the id in the log.

    `param`: the field of the request at fault, if the fault is the request's own.
    """

    message: str
    error_id: str | None = None
    param: str | None = None


class RowOutput(NamedTuple):
    """Result of one row of a step.

    `token_ids`: the sampled tokens: none for a row without sampling, else one; with drafts, the accepted drafts and one
    more token. `logprobs`: of each sampled token, if requested. `finish_reason`: why the output ends with the last
    token, by its grammar, or without a token. `forced_from`: number of output tokens before a forced completion that
    has begun. With a `failure` there are no tokens.
    """

    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprobs, ...] | None = None
    finish_reason: str | None = None
    num_drafts: int = 0  # verified drafts
    prompt_logprobs: PromptLogprobs | None = None
    failure: RowFailure | None = None
    forced_from: int | None = None

    def first(self, num_tokens: int) -> "RowOutput":
        """Return the output cut to its first tokens."""
        logprobs = None if self.logprobs is None else self.logprobs[:num_tokens]
        return self._replace(token_ids=self.token_ids[:num_tokens], logprobs=logprobs)


NO_OUTPUT = RowOutput()


class Progress(NamedTuple):
    """Progress of one request in a step: tokens, its end (then it has a finish_reason), or both.

    `gap`: seconds since the request's tokens before these; None for its first.
    """

    request: Request
    output: RowOutput = NO_OUTPUT
    gap: float | None = None
