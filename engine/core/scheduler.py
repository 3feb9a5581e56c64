"""Scheduler: each step it decides which tokens of which requests are computed, and afterwards applies the results.

A pure state machine: no torch, no clock of its own, no randomness. `schedule` decides (a Plan, which changes nothing)
and applies the plan; `update` takes the results. With two steps in flight the second is decided before the first has
results, on the assumption that every row that samples gets a token:

    step N     |---- runs ----|
    step N+1     decided here |---- runs ----|

A wrong assumption costs rows, never tokens: a request that ends with step N has a row in step N+1 whose output is
dropped, and keeps its blocks until that step has ended.
"""

import itertools
from bisect import insort
from collections import Counter, deque
from collections.abc import Mapping, Sequence

from .batch import Batch, BatchRow, Progress, RowOutput
from .block_manager import BlockManager
from .block_ports import Prefix
from .deadlines import Deadlines
from .fair_queue import TokenCounters
from .plan import Pace, Plan, Queues
from .planner import Planner
from .policies import QUEUE_ORDERS, num_interactive
from .ports import Decision, RequestObserver, SchedulerConfig, SchedulerListener
from .preemption_costs import PreemptionCosts
from .request import Request, Status


class Scheduler:
    """Continuous batching with chunked prefill over paged blocks; preemption by recompute or swap.

    Up to `max_steps_in_flight` steps may be decided before `update` gets the results of the first of them.

    Progress: a tenant's first request in queue order never gives way to another of that tenant, and every request that
    is admitted fits the pool alone. So the first request ends, and then the next one is first.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        *,
        max_steps_in_flight: int = 1,
        listener: SchedulerListener | None = None,
        observer: RequestObserver | None = None,
    ) -> None:
        self.blocks = blocks
        self.observer = observer or RequestObserver()
        self.listeners = [] if listener is None else [listener]
        self.waiting: list[Request] = []  # in queue order
        self.running: list[Request] = []  # in queue order
        self.num_preemptions_by_mode = {"recompute": 0, "swap": 0}
        self._max_num_seqs = config.max_num_seqs
        self._order = QUEUE_ORDERS[config.scheduling_policy]
        pool, is_fair = (config.max_num_seqs, blocks.device.num_blocks), config.scheduling_policy == "fair"
        self._counters = TokenCounters(config.tenant_weights, pool=pool) if is_fair else None
        self._arrivals = itertools.count()
        self._deadlines = Deadlines()
        self._in_flight: deque[Batch] = deque()  # oldest first
        self._finished_in_flight: dict[Request, None] = {}  # finished requests whose blocks a step in flight uses
        self.max_steps_in_flight = max_steps_in_flight
        more = sum([companion.num_blocks for companion in blocks.companions])
        self.costs = PreemptionCosts(config.preemption_mode, blocks.seconds_per_block, num_more_blocks=more)
        self._planner = Planner(config, blocks, self.costs, self._counters)
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._step = itertools.count()

    @property
    def num_steps_in_flight(self) -> int:
        """Number of steps that were decided and not updated yet."""
        return len(self._in_flight)

    @property
    def has_work(self) -> bool:
        """True if a request is not finished."""
        return bool(self.waiting or self.running)

    @property
    def num_preemptions(self) -> int:
        """Number of preemptions of all requests."""
        return sum(self.num_preemptions_by_mode.values())

    # Requests come and end.

    def add(self, request: Request, *, predicted_ttft: float | None = None) -> None:
        """Queue a request. `predicted_ttft`: seconds until its first token as predicted now, for its history."""
        request.arrival_order = next(self._arrivals)
        if self._counters is not None and not request.is_background:
            self._counters.joined(request.tenant, self.waiting[: num_interactive(self.waiting)])
        insort(self.waiting, request, key=self._order)
        self._deadlines.add(request)
        self.observer.added(request, predicted_ttft)
        for listener in self.listeners:
            listener.added(request)

    def finish(self, request: Request, *, reason: str, now: float, stop: str | None = None) -> bool:
        """End a request; its blocks are free once no step in flight uses them. Return False if it had ended before.

        `stop`: stop string that was found in its text, before the next `schedule`. If the same token also brought the
        request to its length, the stop string is the better reason.
        """
        for listener in () if request.is_finished else self.listeners:
            listener.finished(request, reason=reason, now=now, at_text=stop is not None)
        if request.is_finished and stop is not None:
            request.finish_reason, request.stop_reason = reason, stop
        return self._finish(request, reason=reason, stop_reason=stop, now=now)

    def drop_last(self, request: Request, num_tokens: int) -> None:
        """Drop the last tokens of a finished request, which its last step brought behind its end."""
        assert request.is_finished
        del request.token_ids[-num_tokens:]

    def expire(self, now: float) -> list[Request]:
        """End requests whose time is over. Return them."""
        ended = [r for r in self._deadlines.expired(now) if self.finish(r, reason="timeout", now=now)]
        self._deadlines.forget_ended(len(self.waiting) + len(self.running))
        return ended

    def _finish(self, request: Request, *, reason: str, now: float, stop_reason: int | str | None = None) -> bool:
        if request.is_finished:
            return False
        (self.running if request.status is Status.RUNNING else self.waiting).remove(request)
        if self._is_in_flight(request):
            self._finished_in_flight[request] = None
        else:
            self.blocks.release(request)
        request.status = Status.FINISHED
        request.finish_reason, request.stop_reason, request.finished_time = reason, stop_reason, now
        self.observer.finished(request, now)
        return True

    def _is_in_flight(self, request: Request) -> bool:
        return any(row.request is request for batch in self._in_flight for row in batch.rows)

    def _release_finished(self) -> None:
        for request in [request for request in self._finished_in_flight if not self._is_in_flight(request)]:
            del self._finished_in_flight[request]
            self.blocks.release(request)

    def _continuing(self) -> list[Request]:
        """Return the running requests without those that reach their length with a step in flight."""
        if not self._in_flight:
            return self.running
        return [r for r in self.running if len(r.token_ids) + r.num_output_placeholders < r.max_num_tokens]

    # A step is decided.

    def schedule(
        self,
        now: float,
        *,
        pace: Pace | None = None,
        drafts: Mapping[Request, int] | None = None,
        needs_host: bool = False,
    ) -> Batch | None:
        """Decide and apply one step; None if there is nothing to compute, or nothing before the next `update`.

        With a step in flight, also None if a request must be preempted or needs the host.
        `drafts`: how many tokens to compute behind the last one of some requests, if tokens are left over.
        `needs_host`: the step runs synchronously whatever its rows are.
        """
        assert len(self._in_flight) < self.max_steps_in_flight, "update comes first"
        assert not (drafts and self._in_flight), "drafts are guessed from tokens that are known"
        if self._in_flight and self._in_flight[-1].needs_host:
            return None
        was_running = list(self.running) if self.listeners else []
        queues = Queues(self._continuing(), self.waiting, self._in_flight)
        most, pace = self._max_num_batched_tokens, pace or Pace()
        plan = self._planner.plan(queues, max_tokens=min(pace.budget or most, most), drafts=drafts or {}, pace=pace)
        batch = self._apply(plan, now, needs_host=needs_host) if plan.num_tokens or plan.preempted else None
        if batch is not None:
            self._in_flight.append(batch)
            self.observer.decided(plan, self.running, now)
        for listener in self.listeners:
            listener.scheduled(self, Decision(now, pace, drafts, was_running, plan, batch))
        return batch

    # A step is applied.

    def _apply(self, plan: Plan, now: float, *, needs_host: bool) -> Batch:
        for request, is_swapped in plan.preempted.items():
            prices, gave_way = plan.prices[request], request in plan.gave_way
            self.observer.preempted(request, now, is_swapped=is_swapped, prices=prices, gave_way=gave_way)
            self.preempt(request, is_swapped=is_swapped)
        if self._counters is not None:
            self._counters.decided(plan.gave_way, self.running)
        for request, prefix in plan.admitted.items():
            self._admit(request, prefix, now)
            self.observer.admitted(request, now)
        for request, prefix in plan.admitted.items():
            self.blocks.restore(request, prefix)
        for request, num_blocks in plan.new_blocks.items():
            if num_blocks:  # most decodes need none
                self.blocks.grow(request, request.num_computed_tokens + plan.num_tokens[request])
        if self.max_steps_in_flight > 1 and not needs_host:
            # While a step is in flight nothing is planned that needs the host.
            is_any = not self._in_flight and Request.any_needs_host_sampling(plan.num_tokens)
            needs_host = is_any or not plan.num_tokens
        return Batch(next(self._step), self._rows(plan), self.blocks.take_moves(), needs_host)

    def _rows(self, plan: Plan) -> list[BatchRow]:
        """Make the rows, single-token rows first. From now on their tokens count as computed."""
        short: list[BatchRow] = []
        long: list[BatchRow] = []
        drafts = plan.num_drafts
        for request, num_tokens in plan.num_tokens.items():
            start = request.num_computed_tokens
            request.num_computed_tokens = end = start + num_tokens
            needs_sampling = end >= len(request.token_ids) + request.num_output_placeholders
            if needs_sampling:
                request.num_output_placeholders += 1
            row = BatchRow(request, start, num_tokens, needs_sampling, drafts.get(request, 0) if drafts else 0)
            (short if num_tokens == 1 else long).append(row)
        rows = short + long
        for companion in self.blocks.companions:
            rows = companion.place(rows)
        return rows

    def preempt(self, request: Request, *, is_swapped: bool) -> None:  # also called by weight_updates
        self.running.remove(request)
        if is_swapped:
            self.blocks.swap_out(request)
        else:
            request.num_read_tokens = max(request.num_read_tokens, request.num_computed_tokens)
            self.blocks.release(request)
        request.status = Status.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions_by_mode["swap" if is_swapped else "recompute"] += 1
        insort(self.waiting, request, key=self._order)

    def _admit(self, request: Request, prefix: Prefix, now: float) -> None:
        self.waiting.remove(request)
        self.blocks.admit(request, prefix)
        request.status = Status.RUNNING
        if request.first_scheduled_time is None:
            request.first_scheduled_time = now
            if self._counters is not None:
                self._counters.admitted(request, request.num_computed_tokens)
        insort(self.running, request, key=self._order)

    # A step has results.

    def update(self, batch: Batch, outputs: Sequence[RowOutput], now: float) -> list[Progress]:
        """Apply the results of the oldest step in flight, outputs[i] of row i.

        Appends tokens; ends requests that fail, hit a stop token or reach their length. Rows of requests that have
        ended meanwhile are dropped, and blocks that were kept for them are freed.
        """
        assert self._in_flight, "no step is in flight"
        assert batch is self._in_flight[0], "steps end in the order in which they were decided"
        self._in_flight.popleft()
        self.observer.step_ended(now)
        progress = []
        # What is computed for a request that has ended before is not remembered.
        pairs = zip(batch.rows, outputs, strict=True) if self.blocks.companions else ()
        are_good = [output.failure is None and not row.request.is_finished for row, output in pairs]
        has_cache = self.blocks.cache is not None
        for row, output in zip(batch.rows, outputs, strict=True):
            request = row.request
            if output.failure is not None:
                self.blocks.forget(request)
                if self._finish(request, reason="error", now=now):
                    progress.append(Progress(request, output))
            elif request.status is not Status.FINISHED:
                if row.num_drafts:
                    request.num_computed_tokens -= row.num_drafts
                if has_cache:
                    self.blocks.remember(request, row.start, row.start + row.num_tokens - row.num_drafts)
                if row.needs_sampling:
                    request.num_output_placeholders -= 1
                    if output.token_ids:
                        progress.append(self._take(request, output, now))
                    elif output.finish_reason and self._finish(request, reason=output.finish_reason, now=now):
                        progress.append(Progress(request, output))
                if row.num_drafts and not request.is_finished:
                    self.blocks.free_after_tokens(request)
        if self._finished_in_flight:
            self._release_finished()
        for companion in self.blocks.companions:
            companion.end_rows(batch.rows, are_good)
        self.observer.updated(now)
        for listener in self.listeners:
            listener.updated(batch, outputs, progress, now=now)
        return progress

    def _take(self, request: Request, output: RowOutput, now: float) -> Progress:
        """Append the sampled tokens until the request ends. Those behind the first follow accepted drafts, computed."""
        gap = None if request.last_token_time is None else now - request.last_token_time
        if request.first_token_time is None:
            request.first_token_time = now
        request.last_token_time = now
        if not output.num_drafts:
            self._append(request, output.token_ids[0], output.finish_reason, now)
            return Progress(request, output, gap)
        request.num_draft_tokens += output.num_drafts
        request.num_accepted_tokens += len(output.token_ids) - 1
        last = len(output.token_ids) - 1
        for index, token_id in enumerate(output.token_ids):
            if index:
                if request.is_finished:
                    return Progress(request, output.first(index), gap)
                request.num_computed_tokens += 1
                self.blocks.remember(request, request.num_computed_tokens - 1, request.num_computed_tokens)
            self._append(request, token_id, output.finish_reason if index == last else None, now)
        return Progress(request, output, gap)

    def _append(self, request: Request, token_id: int, finish_reason: str | None, now: float) -> None:
        token_ids = request.token_ids
        token_ids.append(token_id)
        if self._counters is not None:
            self._counters.produced(request)
        if token_id in request.stop_token_ids and request.num_output_tokens > request.params.min_tokens:
            stop_reason = token_id if token_id in request.params.stop_token_ids else None
            self._finish(request, reason="stop", stop_reason=stop_reason, now=now)
        elif finish_reason is not None:
            self._finish(request, reason=finish_reason, now=now)
        elif len(token_ids) >= request.max_num_tokens:
            self._finish(request, reason="length", now=now)

    def check(self) -> None:
        """Prove the invariants; tests call this after every step."""
        self.blocks.check([*self.running, *self._finished_in_flight], self.waiting)
        assert self.running == sorted(self.running, key=self._order)
        assert self.waiting == sorted(self.waiting, key=self._order)
        assert not set(self.running) & set(self.waiting)
        assert len(self._continuing()) <= self._max_num_seqs
        in_flight = [row for batch in self._in_flight for row in batch.rows]
        num_placeholders = Counter(row.request for row in in_flight if row.needs_sampling)
        blocks_for = self.blocks.device.num_blocks_for
        for request in self.running:
            assert request.status is Status.RUNNING
            assert request.num_output_placeholders == num_placeholders[request]
            num_tokens = request.num_tokens + request.num_output_placeholders
            num_drafts = sum(row.num_drafts for row in in_flight if row.request is request)
            assert request.num_computed_tokens - num_drafts < num_tokens <= request.max_num_tokens
            assert not request.host_block_table
            held = len(request.block_table)
            assert blocks_for(request.num_computed_tokens) <= held <= blocks_for(num_tokens + num_drafts)
        for request in self.waiting:
            assert request.status in (Status.WAITING, Status.PREEMPTED)
            assert not request.num_output_placeholders
        for row in in_flight:
            held = len(row.request.block_table) * self.blocks.device.block_size
            assert held >= row.end, f"{row.request} has lost blocks that a step in flight uses"
        assert all(request.is_finished and self._is_in_flight(request) for request in self._finished_in_flight)
