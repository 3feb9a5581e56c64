"""OverlappedScheduler: decides on a step while the one before it runs, so that the device never waits for the host.

    step N     |---- runs ----|
    step N+1     decided here |---- runs ----|          of N it is presumed that every row that samples gets a token

Presumed tokens stand in the requests only while a decision is made, as placeholders: to everybody else a request holds
what is known. What the presumption gets wrong costs rows, never tokens: a request that ends with step N has a row in
step N+1, whose result nobody hears, and keeps its blocks until that step has ended. Knows no tensor.
"""

from collections import deque
from collections.abc import Container, Iterator, Mapping, Sequence
from contextlib import contextmanager

from ..batch import Batch, BatchRow, RowFailure, RowResult
from ..config import EngineConfig
from ..request import Request
from .block_manager import BlockManager
from .plan import Plan
from .scheduler import Progress, Scheduler

MAX_STEPS_UNDER_WAY = 2
_PLACEHOLDER = -1
_NOTHING = Plan({}, {}, {}, {}, {})


def reads_tokens(request: Request) -> bool:
    """Whether drawing its next token needs the ones before it on the host: no step can go ahead of such a row.

    So do logprobs, which are read from the logits on the host. Stop strings do not: they are met one step late.
    """
    params = request.params
    return bool(
        request.is_scored
        or request.grammar is not None
        or request.bad_words
        or params.logprobs is not None
        or params.logit_bias
        or params.allowed_token_ids is not None
        or params.min_tokens > request.num_output_tokens
        or params.repetition_penalty != 1.0
        or params.presence_penalty
        or params.frequency_penalty
    )


class OverlappedScheduler(Scheduler):
    """A Scheduler with up to two steps under way. `update` books them in the order in which they were decided.

    With a step under way, `schedule` gives None also where a decision has to wait for its results: somebody would have
    to give way, or a row reads tokens. `finish` ends a request at once, in flight or not.
    """

    def __init__(self, config: EngineConfig, blocks: BlockManager) -> None:
        super().__init__(config, blocks)
        self._under_way: deque[Batch] = deque()  # oldest first
        self._lingering: dict[Request, None] = {}  # ended, but a step under way uses their blocks
        self._ending: list[Request] = []  # while deciding: those who reach their length in a step under way

    def schedule(
        self, now: float, *, budget: int | None = None, drafts: Mapping[Request, int] | None = None
    ) -> Batch | None:
        """Decide and apply a step that runs behind those under way; None if there is none, or none before `update`."""
        assert not drafts, "drafts are guessed from tokens that are known"
        assert len(self._under_way) < MAX_STEPS_UNDER_WAY, "one step ahead, no further"
        with self._presumed():
            batch = super().schedule(now, budget=budget)
        self._in_flight = frozenset()  # nothing is put off here
        if batch is not None:
            self._under_way.append(batch)
        return batch

    @contextmanager
    def _presumed(self) -> Iterator[None]:
        """Within, the steps under way have brought a placeholder for each row that samples."""
        rows = [row for batch in self._under_way for row in batch.rows if not row.request.is_finished]
        for row in rows:
            row.request.num_computed_tokens = row.end
            if row.samples:
                row.request.token_ids.append(_PLACEHOLDER)
        running = self.running
        self._ending = [request for request in running if request.num_tokens >= request.max_num_tokens]
        if self._ending:
            self.running = [request for request in running if request.num_tokens < request.max_num_tokens]
        yield
        self.running = sorted([*self.running, *self._ending], key=self._order) if self._ending else self.running
        self._ending = []
        for row in reversed(rows):
            row.request.num_computed_tokens = row.start
            if row.samples:
                row.request.token_ids.pop()

    def _plan(self, budget: int, drafts: Mapping[Request, int]) -> Plan:
        plan = super()._plan(budget, drafts)
        # A victim's blocks are in use, and what it has computed is not known: the results come first.
        must_wait = bool(self._under_way) and (bool(plan.preempted) or any(map(reads_tokens, plan.num_tokens)))
        return _NOTHING if must_wait else plan

    def _waits_for_its_leader(self, request: Request, admitted: Container[Request]) -> bool:
        """Also until its prompt is known to have been computed well: what a failed row leaves is not to be shared."""
        if super()._waits_for_its_leader(request, admitted):
            return True
        if request.leader is None or request.num_output_tokens:
            return False
        rows = (row for row in self._rows_under_way() if row.request is request.leader)
        return any(row.start < request.num_prompt_tokens for row in rows)

    def _rows_under_way(self) -> Iterator[BatchRow]:
        return (row for batch in self._under_way for row in batch.rows)

    def _let_go(self, request: Request) -> None:
        if any(row.request is request for row in self._rows_under_way()):
            self._lingering[request] = None
        else:
            super()._let_go(request)

    def update(self, batch: Batch, results: Sequence[RowResult], now: float) -> list[Progress]:
        """Book the oldest step under way. Rows of requests that have ended say nothing; their blocks come free."""
        assert self._under_way, "no step is under way"
        assert batch is self._under_way[0], "steps end in the order in which they began"
        self._under_way.popleft()
        going_on = [(row, result) for row, result in zip(batch.rows, results, strict=True)]
        for row, result in going_on:
            if row.request.is_finished and isinstance(result, RowFailure):
                self._blocks.forget(row.request)
        going_on = [(row, result) for row, result in going_on if not row.request.is_finished]
        self._release_lingering()
        return super().update(batch.subset([row for row, _ in going_on]), [result for _, result in going_on], now)

    def _release_lingering(self) -> None:
        if not self._lingering:
            return
        in_use = {row.request for row in self._rows_under_way()}
        for request in [request for request in self._lingering if request not in in_use]:
            del self._lingering[request]
            self._blocks.release(request)

    def _holders(self) -> list[Request]:
        return [*self.running, *self._ending, *self._lingering]

    def check(self) -> None:
        """Prove the invariants, those of the steps under way among them; tests call this after every step."""
        with self._presumed():
            super().check()
        for row in self._rows_under_way():
            held = len(row.request.block_table) * self._blocks.device.block_size
            assert held >= row.end, f"{row.request} has lost blocks that a step under way uses"
        assert all(request.is_finished for request in self._lingering)
        assert not self._in_flight
