"""Scheduler: each step it decides which tokens of which requests are computed, and afterwards applies the results.

A pure state machine: no torch, no clock of its own, no randomness. `schedule` decides (a Plan, which changes nothing)
and applies it; `update` takes the results. With two steps in flight the second is decided before the first has results:

    step N     |---- runs ----|
    step N+1     decided here |---- runs ----|          of N it is assumed that every row that samples gets a token

A wrong assumption costs rows, never tokens: a request that ends with step N has a row in step N+1 whose output is
dropped, and keeps its blocks until that step has ended.
"""

import heapq
import itertools
from bisect import insort
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Protocol

from .batch import Batch, BatchRow, Progress, RowOutput
from .block_manager import BlockManager, Prefix
from .fair_queue import TokenCounters
from .outputs import RequestHistory
from .plan import Decision, Plan, Queues
from .planner import Planner
from .policies import QUEUE_ORDERS, num_interactive
from .ports import NoObserver, RequestObserver
from .preemption import PreemptionCosts
from .request import Request, Status
from .scheduler_config import SchedulerConfig

_FEW_DEADLINES = 64  # too few to clean up


class SchedulerListener(Protocol):
    """Receives every call from outside that changes a scheduler, after it has been carried out."""

    def added(self, request: Request) -> None: ...

    def finished(self, request: Request, *, reason: str, now: float, at_text: bool = False) -> None:
        """`at_text`: a stop string was found in the text. Called before the request changes."""

    def scheduled(self, scheduler: "Scheduler", decision: Decision) -> None: ...

    def updated(
        self, batch: Batch, outputs: Sequence[RowOutput], progress: Sequence[Progress], *, now: float
    ) -> None: ...


class Scheduler:
    """Continuous batching with chunked prefill over paged blocks; preemption by recompute or swap.

    Up to `max_steps_in_flight` steps may be decided before `update` gets the results of the first of them. While a
    step is in flight `schedule` gives None also where the decision depends on results: a request would have to be
    preempted, or needs the host.

    Progress: the first request in queue order is never preempted for another, and only requests that fit the pool alone
    are admitted, so it always ends; then the next is first.
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
        self.max_steps_in_flight = max_steps_in_flight
        self._max_num_seqs = config.step_limits.num_seqs
        self._max_num_batched_tokens = config.step_limits.num_batched_tokens
        self._order = QUEUE_ORDERS[config.scheduling_policy]
        self._counters = TokenCounters(config.tenant_weights) if config.scheduling_policy == "fair" else None
        self.costs = PreemptionCosts(config.preemption_mode)  # of what the engine measures
        self._planner = Planner(config, blocks, self.costs, self._counters)
        self._arrivals = itertools.count()
        self._step = itertools.count()
        # Heap of (when, tie, request, whether it applies only until the request is first scheduled).
        self._deadlines: list[tuple[float, int, Request, bool]] = []
        self._in_flight: deque[Batch] = deque()  # oldest first
        self._finished_in_flight: dict[Request, None] = {}  # finished, but a step in flight uses their blocks
        self._listener = listener
        self._listeners: tuple[SchedulerListener, ...] = () if listener is None else (listener,)
        self._observer = observer or NoObserver()
        self.waiting: list[Request] = []  # in queue order
        self.running: list[Request] = []  # in queue order
        self.num_preemptions_by_mode = {"recompute": 0, "swap": 0}

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished."""
        return bool(self.waiting or self.running)

    @property
    def num_steps_in_flight(self) -> int:
        """Steps that have been decided and not been updated."""
        return len(self._in_flight)

    @property
    def num_preemptions(self) -> int:
        """How often a request was preempted."""
        return sum(self.num_preemptions_by_mode.values())

    def watch(self, watcher: SchedulerListener | None) -> None:
        """Tell a second listener too from now on; None: no longer."""
        self._listeners = tuple(each for each in (self._listener, watcher) if each is not None)

    def history(self, request: Request, now: float) -> RequestHistory | None:
        """What a request that has not ended has waited for and been given so far."""
        return self._observer.so_far(request, now)

    # Requests come and end.

    def add(self, request: Request, *, predicted_ttft: float | None = None) -> None:
        """Queue a request. `predicted_ttft`: seconds until its first token, as they seem now; for its history."""
        request.arrival_order = next(self._arrivals)
        if self._counters is not None and not request.is_background:
            self._counters.joined(request.tenant, self.waiting[: num_interactive(self.waiting)])
        insort(self.waiting, request, key=self._order)
        for only_queued, milliseconds in enumerate((request.params.timeout_ms, request.params.max_queue_ms)):
            if milliseconds is not None:
                tie = 2 * request.arrival_order + only_queued
                deadline = request.arrival_time + milliseconds / 1000
                heapq.heappush(self._deadlines, (deadline, tie, request, bool(only_queued)))
        self._observer.added(request, predicted_ttft)
        for listener in self._listeners:
            listener.added(request)

    def finish(self, request: Request, *, reason: str, now: float) -> bool:
        """End a request; its blocks are free as soon as no step in flight uses them.

        Returns whether it ended now: one that is finished is left alone.
        """
        for listener in () if request.is_finished else self._listeners:
            listener.finished(request, reason=reason, now=now)
        return self._finish(request, reason=reason, now=now)

    def stop_at_text(self, request: Request, *, stop: str, now: float) -> None:
        """End a request in whose text a stop string was found, before the next `schedule`.

        If the same token also brought it to its length, the stop string is the better reason.
        """
        for listener in () if request.is_finished else self._listeners:
            listener.finished(request, reason="stop", now=now, at_text=True)
        if not self._finish(request, reason="stop", stop_reason=stop, now=now):
            request.finish_reason, request.stop_reason = "stop", stop

    def drop_last(self, request: Request, num_tokens: int) -> None:
        """Drop the last tokens of a finished request, which came with its last step, but after its end."""
        assert request.is_finished
        del request.token_ids[-num_tokens:]

    def expire(self, now: float) -> list[Request]:
        """End requests whose time is over. Returns them."""
        ended = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, request, only_queued = heapq.heappop(self._deadlines)
            was_scheduled = request.first_scheduled_time is not None
            if not (only_queued and was_scheduled) and self.finish(request, reason="timeout", now=now):
                ended.append(request)
        # Most requests end long before their deadline, which can be a day away, and would be kept until then.
        if len(self._deadlines) > 4 * (len(self.waiting) + len(self.running)) + _FEW_DEADLINES:
            self._deadlines = [deadline for deadline in self._deadlines if not deadline[2].is_finished]
            heapq.heapify(self._deadlines)
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
        self._observer.finished(request, now)
        return True

    def _is_in_flight(self, request: Request) -> bool:
        return any(row.request is request for batch in self._in_flight for row in batch.rows)

    # A step is decided.

    def schedule(
        self,
        now: float,
        *,
        budget: int | None = None,
        drafts: Mapping[Request, int] | None = None,
        needs_host: bool = False,
        background_budget: int | None = None,
    ) -> Batch | None:
        """Decide and apply one step; None if there is nothing to compute, or nothing before the next `update`.

        `budget`: tokens of this step, if fewer than max_num_batched_tokens. `drafts`: how many tokens after their last
        one some requests would like to compute; they get what is left over. `needs_host`: the step is to run
        synchronously whatever its rows are. `background_budget`: the most of the tokens that background requests get
        beside interactive ones.
        """
        assert len(self._in_flight) < self.max_steps_in_flight, "update comes first"
        assert not (drafts and self._in_flight), "drafts are guessed from tokens that are known"
        if self._in_flight and self._in_flight[-1].needs_host:
            return None
        listeners = self._listeners
        was_running = list(self.running) if listeners else []
        most = self._max_num_batched_tokens
        queues = Queues(self._continuing(), self.waiting, self._in_flight)
        plan = self._planner.plan(
            queues, budget=min(budget or most, most), drafts=drafts or {}, background_budget=background_budget
        )
        batch = self._apply(plan, now, needs_host=needs_host) if plan.num_tokens or plan.preempted else None
        if batch is not None:
            self._in_flight.append(batch)
            self._observer.decided(plan, self.running, now)
        for listener in listeners:
            listener.scheduled(self, Decision(now, budget, drafts, background_budget, was_running, plan, batch))
        return batch

    def _continuing(self) -> list[Request]:
        """The running requests without those that reach their length with a step in flight."""
        if not self._in_flight:
            return self.running
        return [r for r in self.running if len(r.token_ids) + r.num_output_placeholders < r.max_num_tokens]

    # A step is applied.

    def _apply(self, plan: Plan, now: float, *, needs_host: bool) -> Batch:
        for request, is_swapped in plan.preempted.items():
            self._observer.preempted(request, now, is_swapped=is_swapped, prices=plan.prices[request])
            self._preempt(request, is_swapped=is_swapped)
        for request, prefix in plan.admitted.items():
            self._admit(request, prefix, now)
            self._observer.admitted(request, now)
        for request, prefix in plan.admitted.items():
            self.blocks.restore(request, prefix)
        for request, num_blocks in plan.new_blocks.items():
            if num_blocks:  # most decodes need none
                self.blocks.grow(request, request.num_computed_tokens + plan.num_tokens[request])
        if self.max_steps_in_flight > 1:
            # While a step is in flight nothing is planned that needs the host.
            is_any = not self._in_flight and Request.any_needs_host_sampling(plan.num_tokens)
            needs_host = needs_host or not plan.num_tokens or is_any
        return Batch(next(self._step), self._rows(plan), self.blocks.take_moves(), needs_host)

    def _rows(self, plan: Plan) -> list[BatchRow]:
        """The rows, those with a single token first, which from now on count as computed."""
        short: list[BatchRow] = []
        long: list[BatchRow] = []
        drafts = plan.num_drafts
        for request, num_tokens in plan.num_tokens.items():
            start = request.num_computed_tokens
            end = start + num_tokens
            needs_sampling = end >= len(request.token_ids) + request.num_output_placeholders
            request.num_computed_tokens = end
            if needs_sampling:
                request.num_output_placeholders += 1
            row = BatchRow(request, start, num_tokens, needs_sampling, drafts.get(request, 0) if drafts else 0)
            (short if num_tokens == 1 else long).append(row)
        return short + long

    def _preempt(self, request: Request, *, is_swapped: bool) -> None:
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

        Appends tokens, ends requests that fail, hit a stop token or reach their length. Rows of requests that ended
        meanwhile are dropped, and blocks that were kept for them are freed.
        """
        assert self._in_flight, "no step is in flight"
        assert batch is self._in_flight[0], "steps end in the order in which they were decided"
        self._in_flight.popleft()
        self._observer.step_ended(now)
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
                if row.num_drafts and not request.is_finished:
                    self.blocks.free_after_tokens(request)
        if self._finished_in_flight:
            self._release_finished()
        self._observer.updated(now)
        for listener in self._listeners:
            listener.updated(batch, outputs, progress, now=now)
        return progress

    def _release_finished(self) -> None:
        for request in [request for request in self._finished_in_flight if not self._is_in_flight(request)]:
            del self._finished_in_flight[request]
            self.blocks.release(request)

    def _take(self, request: Request, output: RowOutput, now: float) -> Progress:
        """Append what was sampled, until the request ends. All tokens but the first follow drafts that were
        accepted, which are computed.
        """
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
            own = token_id if token_id in request.params.stop_token_ids else None
            self._finish(request, reason="stop", stop_reason=own, now=now)
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
