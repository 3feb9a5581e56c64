"""Audit of the scheduler's decisions, derived from the states before and after them, not by its own code."""

from places_audit import PlacesAudit

from splitfuse.engine.config import ResolvedConfig
from splitfuse.engine.core.batch import Batch, BatchRow
from splitfuse.engine.core.plan import Pace
from splitfuse.engine.core.request import Request, Status
from splitfuse.engine.core.scheduler import Scheduler

MAX_PREEMPTIONS = 2  # no request is preempted more often while another can be


class ScheduleAudit:
    """Audit of budgets, order, promises and the policy's own rule, decision by decision."""

    def __init__(self, config: ResolvedConfig, scheduler: Scheduler) -> None:
        self._config = config
        self._scheduler = scheduler
        self._pool = scheduler.blocks.device
        self._whole_prompts = config.batching_policy in ("prefill_first", "static")
        self._places = PlacesAudit(config, scheduler)
        self.admitted: list[Request] = []
        self.preempted: list[Request] = []

    def before(self, pace: Pace) -> None:
        """Record the state before a decision."""
        most = self._config.max_num_batched_tokens
        self._budget = min(pace.budget or most, most)
        self._places_in_order = {request: place for place, request in enumerate(pace.order)}
        self._ahead = pace.ahead
        self._running = list(self._scheduler._continuing())
        self._ending = [request for request in self._scheduler.running if request not in self._running]
        self._waiting = list(self._scheduler.waiting)
        self._places.before()
        self._wanted = {request: request.num_uncomputed_tokens for request in self._running}
        self._computed = {request: request.num_computed_tokens for request in self._running}
        rows = [row for batch in self._scheduler._in_flight for row in batch.rows]
        self._rows_in_flight = rows
        self._begun = {request for request in self._waiting if request.status is Status.PREEMPTED}
        self._first_decoding = [r.num_output_tokens + r.num_output_placeholders < 2 for r in self._running]

    def check(self, batch: Batch | None) -> None:
        """Check a decision."""
        if batch is None:
            assert not self._running, "a request runs but no step is scheduled"
            assert not self._waiting, "a request waits but no step is scheduled"
            self.admitted, self.preempted = [], []
            return
        self._rows_in_flight += batch.rows
        before = {*self._running, *self._ending}
        self.admitted = [request for request in self._scheduler.running if request not in before]
        self.preempted = [request for request in self._running if request.status is Status.PREEMPTED]
        self._check_rows(batch)
        self._check_budget(batch)
        self._check_policy(batch)
        if self.preempted:
            self._check_preempted()
        if self.admitted:
            self._check_admitted()
        self._check_budget_is_used(batch)
        self._places.check(self._running, is_admitting=bool(self.admitted))

    def begins(self, batch: Batch) -> list[BatchRow]:
        """Return the first rows of requests."""
        return [row for row in batch.rows if row.request in self.admitted and row.request not in self._begun]

    def _check_rows(self, batch: Batch) -> None:
        assert len({row.request for row in batch.rows}) == len(batch.rows), "a request has two rows"
        sizes = [row.num_tokens for row in batch.rows]
        assert sorted(sizes, key=lambda size: size > 1) == sizes, "rows of one token come first"
        for row in batch.rows:
            request, num_tokens = row.request, row.num_tokens - row.num_drafts
            assert request.status is Status.RUNNING, f"{request} is computed"
            assert row.start == self._computed.get(request, row.start), f"{request} goes on at {row.start}"
            assert row.end == request.num_computed_tokens, f"{request} is computed up to {row.end}"
            num_placeholders = request.num_output_placeholders - row.needs_sampling
            wanted = self._wanted.get(request, request.num_tokens + num_placeholders - row.start)
            assert wanted == request.num_tokens + num_placeholders - row.start, f"{request} wants {wanted} tokens"
            assert 0 < num_tokens <= wanted, f"{request} gets {num_tokens} tokens"
            assert row.needs_sampling == (num_tokens == wanted), f"{request} samples: {row.needs_sampling}"
            if row.num_drafts:
                assert num_tokens == 1, f"{request} drafts behind {num_tokens} tokens"
                assert row.end < request.max_num_tokens, f"{request} drafts beyond its end"
                assert not self.preempted, f"{request} drafts while another is preempted"

    def _check_budget(self, batch: Batch) -> None:
        total, largest = batch.num_tokens, max((row.num_tokens - row.num_drafts for row in batch.rows), default=0)
        alone = self._whole_prompts and len(batch.rows) == 1
        assert alone or total <= self._budget, f"{total} tokens, the budget is {self._budget}"
        assert self._num_running <= self._config.max_num_seqs, f"{self._num_running} run"
        if self._whole_prompts:
            assert all(row.needs_sampling for row in batch.rows), "a prompt was cut"
        elif self._config.long_prefill_token_threshold:
            assert largest <= self._config.long_prefill_token_threshold, f"a chunk of {largest} tokens"

    def _check_policy(self, batch: Batch) -> None:
        decodes = [request for request, wanted in self._wanted.items() if wanted == 1]
        computed = {row.request for row in batch.rows}
        num_decodes = len(computed.intersection(decodes))
        others = len(batch.rows) - num_decodes
        policy = self._config.batching_policy
        if policy == "splitfuse":
            waits = [request for request in decodes if request not in computed and request not in self.preempted]
            assert not waits or num_decodes == self._budget, f"{waits} waits for its token"
        else:
            assert not num_decodes or not others, f"{policy} computes decodes beside prompts"
        if policy == "decode_first":
            assert not others or not decodes, "a prompt goes before a decode"
        if policy == "static":
            assert not self.admitted or all(self._first_decoding), "a running batch was added to"

    def _check_budget_is_used(self, batch: Batch) -> None:
        """Check that no token of the budget is unused while a request could have it."""
        num_tokens = sum(row.num_tokens - row.num_drafts for row in batch.rows)
        if self._config.batching_policy != "splitfuse" or num_tokens >= self._budget or self.preempted:
            return
        assert len(batch.rows) == self._num_running, f"{num_tokens} tokens, the budget is {self._budget}"
        waiting = [request for request in self._scheduler.waiting if not self._waits_for_its_parent(request)]
        waiting = [request for request in waiting if request not in self._places.plan.over_limit]
        # A request whose parent has just been readmitted is best forked in the next step; those after it wait, too.
        parent_readmitted = any(request.parent in self.admitted for request in self._scheduler.waiting)
        if waiting and not parent_readmitted and self._num_running < self._config.max_num_seqs:
            largest = max(self._pool.num_blocks_for(request.num_tokens) for request in waiting)
            assert self._spare_blocks() < largest + self._pool.num_blocks // 100, f"none of {waiting} was admitted"

    def _spare_blocks(self) -> int:
        """Return the number of free blocks that no running prompt will need."""
        prompts = [request for request, wanted in self._wanted.items() if wanted > 1] + self.admitted
        return self._pool.num_free_blocks - sum(
            self._pool.num_blocks_for(request.num_tokens) - len(request.block_table)
            for request in prompts
            if request.status is Status.RUNNING
        )

    def _check_preempted(self) -> None:
        """Check that the latest is preempted first, unless preempted often, and the queue's first never for another."""
        makes_way = all(victim.is_background for victim in self.preempted)  # in the next step, for its blocks or place
        if makes_way and not all(request.is_background for request in self._waiting):
            return
        assert not self.admitted, "a request was admitted in a step that preempted"
        if self._places.plan.gave_way:
            return
        largest = max(self._pool.num_blocks_for(victim.num_tokens) for victim in self.preempted)
        assert self._pool.num_free_blocks < largest, f"{self.preempted} were preempted for nothing"
        stayed = [request for request in self._running if request.status is Status.RUNNING]
        assert self._running[0] in stayed or not stayed, "the first in the queue was preempted for another"
        for victim in self.preempted if self._config.scheduling_policy != "fair" else ():
            is_often = victim.num_preemptions > MAX_PREEMPTIONS
            for other in stayed[1:]:
                if other.num_preemptions < MAX_PREEMPTIONS:
                    assert not is_often, (
                        f"{victim} was preempted for the {victim.num_preemptions}th time before {other}"
                    )
                    assert self._queue_position(other) < self._queue_position(victim), (
                        f"{victim} was preempted before {other}"
                    )
                elif is_often:
                    assert self._queue_position(other) < self._queue_position(victim), (
                        f"{victim} was preempted before {other}"
                    )

    def _check_admitted(self) -> None:
        for waits in self._scheduler.waiting:
            if not self._waits_for_its_parent(waits) and waits not in self._places.plan.over_limit:
                for admitted in self.admitted:
                    is_earlier = self._admission_position(admitted) < self._admission_position(waits)
                    is_ahead = admitted in self._ahead and waits not in self._ahead
                    is_next = is_earlier or is_ahead or self._is_a_tenants_turn(admitted, waits)
                    assert is_next, f"{admitted} overtook {waits}"
        spare = self._spare_blocks()
        kept = self._pool.num_blocks // 100 if self._running or len(self.admitted) > 1 else 0
        assert spare >= kept, f"{self.admitted} left {spare} blocks that are not promised, not {kept}"

    def _admission_position(self, request: Request) -> tuple[int, ...]:
        if not self._places_in_order:
            return self._queue_position(request)
        is_later = self._config.scheduling_policy == "fair" and request not in self._begun
        return (int(is_later), self._places_in_order.get(request, len(self._places_in_order)))

    def _queue_position(self, request: Request) -> tuple[int, ...]:
        levels = {"fcfs": 0, "priority": request.params.priority, "fair": request not in self._begun}
        return (int(request.is_background), int(levels[self._config.scheduling_policy]), request.arrival_order)

    def _is_a_tenants_turn(self, admitted: Request, waits: Request) -> bool:
        """True if the tenants' service decides between two requests."""
        return self._config.scheduling_policy == "fair" and admitted.tenant != waits.tenant

    @property
    def _num_running(self) -> int:
        """Number of running requests, without those that reach their length in a step in flight."""
        return len(self._scheduler.running) - sum(r.status is Status.RUNNING for r in self._ending)

    def _waits_for_its_parent(self, request: Request) -> bool:
        parent = request.parent
        if parent is None or request.num_output_tokens or parent.status is not Status.RUNNING:
            return False
        in_flight = [row.start for row in self._rows_in_flight if row.request is parent]
        return parent in self.admitted or min([parent.num_computed_tokens, *in_flight]) < request.num_prompt_tokens
