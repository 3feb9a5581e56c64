"""Speculation: drafts of requests, their lengths and their acceptance. It stands between the step loop and the drafter.

Drafter: proposes the next tokens of requests, which the target model then verifies in one pass.

A drafter may raise, take long or return ids outside the vocabulary: that costs time, which the OverheadBudget bounds,
never a wrong token. No torch here; drafters may import it.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from typing import Any, Protocol

from ...core.batch import Batch, RowOutput
from ...core.engine_core import accepted_per_position
from ...core.ports import Drafted, Speculator
from ...core.request import Request
from .confidence import Confidence
from .draft_length import DraftLengths


class Drafter(Protocol):
    """Proposer of tokens. All calls come from the step's thread, one at a time."""

    @property
    def confidence(self) -> Confidence | None:
        """What ends drafts where tokens are no longer worth their cost; None if DraftLengths alone does."""

    def draft(self, wanted: Mapping[Request, int]) -> Mapping[Request, Sequence[int]]:
        """Return the proposed next tokens, at most `wanted` for each request; fewer or none are allowed."""

    def num_unread_tokens(self, request: Request) -> int:
        """Return how many of the request's tokens must be read, at a cost, before drafting; 0 if reading is free."""

    def forget(self, request: Request) -> None:
        """Drop a request that has ended."""


_MANY_READ = 8
_LEARN_ALL, _LEARN_EVERY = 64, 8  # after 64 calls the drafter's cost is learned from one in eight: it takes 10 to 40 us

_log = logging.getLogger("splitfuse.engine")


class Speculation(Speculator):
    """Manager of drafts, one per engine. `draft` runs in the step's thread, other methods where the scheduler runs."""

    def __init__(
        self,
        drafter: Drafter,
        *,
        max_drafts: int,
        vocab_size: int,
        adaptive: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Create a manager. `max_drafts`: most tokens of a draft; without `adaptive` every draft has that many."""
        self._confidence = drafter.confidence
        self.lengths: DraftLengths[Request] = DraftLengths(max_drafts, ends_drafts=drafter.confidence is not None)
        self._drafter = drafter
        self._max_drafts = max_drafts
        self._vocab_size = vocab_size
        self._adaptive = adaptive
        self._clock = clock
        self._num_calls = 0
        self._ended: list[Request] = []  # requests to forget when the step's thread is not drafting
        self._sizes_seen: set[int] = set()  # sizes of passes; the first of a size builds its kernels: 1 ms on a CPU
        self._draft_s = self._choosing_s = 0.0  # seconds of the step in flight
        self._observing_s = 0.0  # seconds for the last step
        self._num_read = 0
        self._num_failures = 0
        self.num_drafts = 0  # drafts verified
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.num_accepted_tokens_per_pos = [0] * max_drafts
        self.draft_s = 0.0  # seconds spent on drafting

    def skips_step(self) -> bool:
        """Return True if the next step has no drafts and need not be observed. Call it once per step."""
        return self._adaptive and self.lengths.skips_step()

    def choose(self, running: Sequence[Request]) -> dict[Request, int]:
        """Return the tokens to draft for the requests that decode, in order, without requests that get none."""
        decoding = [request for request in running if request.num_uncomputed_tokens == 1]
        if not self._adaptive:
            return dict.fromkeys(decoding, self._max_drafts)
        start = self._clock()
        chosen = self.lengths.choose(
            decoding,
            context=sum(request.num_computed_tokens for request in decoding),
            unread={
                request: (num_unread, request.max_num_tokens - request.num_tokens)
                for request in decoding
                if (num_unread := self._num_unread(request)) > _MANY_READ
            },
        )
        if self._confidence is not None:
            self._confidence.least = self.lengths.least_probability
        self._choosing_s = self._clock() - start
        return chosen

    def draft(self, batch: Batch) -> Batch:
        """Return the batch with drafts in the rows that have room, rows of one token first. Call after block moves."""
        wanted = {row.request: row.num_drafts for row in batch.rows if row.num_drafts}
        start = self._clock()
        self._num_read = sum(map(self._num_unread, wanted))
        drafts = self._drafts(wanted)
        seconds = self._clock() - start
        self.draft_s += seconds
        # The first call may build kernels, so its time says nothing about the next call.
        self._draft_s = seconds if self._num_calls else 0.0
        self._num_calls += 1
        return batch.with_drafts(drafts)

    def _drafts(self, wanted: dict[Request, int]) -> dict[Request, list[int]]:
        """Return the usable tokens of the drafter."""
        try:
            drafts = self._drafter.draft(wanted)
            return {request: self._usable(drafts.get(request, ()), count) for request, count in wanted.items()}
        except Exception:  # whatever the drafter raises, the step goes on without drafts
            self._failed()
            return {request: [] for request in wanted}

    def _num_unread(self, request: Request) -> int:
        try:
            return self._drafter.num_unread_tokens(request)
        except Exception:
            self._failed()
            return 0

    def _failed(self) -> None:
        """Log the exception the first time, then more and more rarely."""
        self._num_failures += 1
        if self._num_failures & (self._num_failures - 1) == 0:
            _log.exception("the drafter failed, for the %d. time; steps go on without its drafts", self._num_failures)

    def _usable(self, token_ids: Sequence[int], count: int) -> list[int]:
        """Return at most `count` tokens of a draft, up to the first one outside the model's vocabulary."""
        return list(takewhile(lambda token_id: 0 <= token_id < self._vocab_size, map(int, token_ids[:count])))

    def observe(self, batch: Batch, outputs: Sequence[RowOutput], seconds: float) -> list[Drafted]:
        """Learn from a step's time and its drafts' acceptance, which is returned."""
        start = self._clock()
        drafted = {
            row.request: Drafted(output.num_drafts, len(output.token_ids) - 1)
            for row, output in zip(batch.rows, outputs, strict=True)
            if output.num_drafts and output.token_ids
        }
        self._count(list(drafted.values()))
        num_drafted = sum(outcome.num_drafted for outcome in drafted.values())
        decoding = [row for row in batch.rows if row.is_decode]
        num_tokens = len(decoding) + num_drafted
        only_decodes = len(decoding) == len(batch.rows) and not any(batch.moves) and num_tokens in self._sizes_seen
        self._sizes_seen.add(num_tokens)
        if self._draft_s and (self._num_calls <= _LEARN_ALL or self._num_calls % _LEARN_EVERY == 0):
            rounds = max((outcome.num_drafted for outcome in drafted.values()), default=0)
            self.lengths.draft_cost.observe(num_drafted + self._num_read, rounds, self._draft_s)
        # Every draft begins with a few unread tokens.
        read_share = self._num_read / (self._num_read + num_drafted) if self._num_read > _MANY_READ else 0.0
        self.lengths.observe(
            drafted,
            num_decodes=len(decoding),
            context=sum(row.start for row in decoding),
            seconds=seconds - self._draft_s - self._choosing_s if only_decodes else None,
            draft_s=self._draft_s + self._choosing_s + self._observing_s,
            read_s=self._draft_s * read_share,
        )
        self._draft_s, self._num_read = 0.0, 0
        self._observing_s = self._clock() - start
        return list(drafted.values())

    def _count(self, outcomes: Sequence[Drafted]) -> None:
        self.num_drafts += len(outcomes)
        self.num_draft_tokens += sum(outcome.num_drafted for outcome in outcomes)
        self.num_accepted_tokens += sum(outcome.num_accepted for outcome in outcomes)
        for position, count in enumerate(accepted_per_position(outcomes)):
            self.num_accepted_tokens_per_pos[position] += count

    def to_dict(self) -> dict[str, Any]:
        """Return the counts so far, and the acceptance: the share of right draft tokens, None before the first."""
        return {
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "num_accepted_tokens_per_pos": list(self.num_accepted_tokens_per_pos),
            "acceptance": self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None,
            "draft_s": self.draft_s,
        }

    def forget(self, request: Request) -> None:
        """Note that a request has ended, perhaps while the step's thread drafts for it."""
        self._ended.append(request)

    def forget_ended(self) -> None:
        """Drop the state of requests that have ended; not while the step's thread drafts."""
        while self._ended:
            request = self._ended.pop()
            self.lengths.forget(request)
            try:
                self._drafter.forget(request)
            except Exception:
                self._failed()
