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
from collections.abc import Mapping, Sequence

from .batch import Batch, BatchRow, Progress, RowOutput
from .block_manager import BlockManager, Prefix
from .pace import Pace
from .plan import Plan, Queues
from .planner import Planner
from .ports import Decision, RequestObserver, SchedulerConfig, SchedulerListener
from .preemption import PreemptionCosts
from .request import Request, Status
from .request_queues import RequestQueues


class Scheduler(RequestQueues):
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
        super().__init__(config, blocks, listener=listener, observer=observer)
        self.max_steps_in_flight = max_steps_in_flight
        self.costs = PreemptionCosts(config.preemption_mode, blocks.seconds_per_block)  # the engine measures the rest
        self._planner = Planner(config, blocks, self.costs, self._counters)
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._step = itertools.count()

    @property
    def num_steps_in_flight(self) -> int:
        """Number of steps that were decided and not updated yet."""
        return len(self._in_flight)

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
        return short + long

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
