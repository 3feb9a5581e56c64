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
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..batch import NO_OUTPUT, Batch, BatchRow, RowOutput
from ..config import EngineConfig
from ..request import Request, Status
from .block_manager import BlockManager, Prefix
from .fair_queue import TokenCounters
from .plan import Plan, Room
from .policies import BATCHING_POLICIES, QUEUE_ORDERS, Source
from .preemption import PreemptionCosts

_FEW_DEADLINES = 64  # too few to clean up
_NOTHING = Plan({}, {}, {}, {}, {})


class Progress(NamedTuple):
    """What a step did for one request: tokens, its end, or both; the request's finish_reason shows which.

    `gap`: seconds since its tokens before these, None for the first.
    """

    request: Request
    output: RowOutput = NO_OUTPUT
    gap: float | None = None


class SchedulerListener(Protocol):
    """Receives every call from outside that changes a scheduler, after it has been carried out."""

    def added(self, request: Request) -> None: ...

    def finished(self, request: Request, *, reason: str, now: float, at_text: bool = False) -> None:
        """`at_text`: a stop string was found in the text. Called before the request changes."""

    def scheduled(
        self,
        scheduler: "Scheduler",
        batch: Batch | None,
        *,
        now: float,
        budget: int | None,
        drafts: Mapping[Request, int] | None,
        was_running: Sequence[Request],
    ) -> None: ...

    def updated(
        self, batch: Batch, outputs: Sequence[RowOutput], progress: Sequence[Progress], *, now: float
    ) -> None: ...


class Scheduler:
    """Continuous batching with chunked prefill over paged blocks; preemption by recompute or swap.

    Up to `max_steps_in_flight` steps may be decided before `update` gets the results of the first of them. While a
    step is in flight `schedule` gives None also where the decision depends on results: a request would have to be
    preempted, or has to be sampled on the host.

    Progress: the first request in queue order is never preempted for another, and only requests that fit the pool alone
    are admitted, so it always ends; then the next is first.
    """

    def __init__(
        self,
        config: EngineConfig,
        blocks: BlockManager,
        *,
        max_steps_in_flight: int = 1,
        listener: SchedulerListener | None = None,
    ) -> None:
        self.blocks = blocks
        self.max_steps_in_flight = max_steps_in_flight
        self._max_num_seqs = config.max_num_seqs
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._policy = BATCHING_POLICIES[config.batching_policy]
        limit = config.long_prefill_token_threshold
        self._max_chunk = limit if limit and not self._policy.whole_prompts else 2**31
        self._order = QUEUE_ORDERS[config.scheduling_policy]
        self._counters = TokenCounters(config.tenant_weights) if config.scheduling_policy == "fair" else None
        self._costs = PreemptionCosts(config.preemption_mode)
        # Admission leaves 1 % of the pool free, so that running requests do not need to preempt at once.
        self._watermark = blocks.device.num_blocks // 100
        self._arrivals = itertools.count()
        self._step = itertools.count()
        # Heap of (when, tie, request, whether it applies only until the request is first scheduled).
        self._deadlines: list[tuple[float, int, Request, bool]] = []
        self._in_flight: deque[Batch] = deque()  # oldest first
        self._lingering: dict[Request, None] = {}  # finished, but a step in flight uses their blocks
        self._listener = listener
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

    @property
    def costs(self) -> PreemptionCosts:
        """What preemption is estimated to cost; the engine sets what it measures."""
        return self._costs

    # Requests come and end.

    def add(self, request: Request) -> None:
        """Queue a request."""
        request.arrival_order = next(self._arrivals)
        if self._counters is not None:
            self._counters.joined(request.tenant, self.waiting)
        insort(self.waiting, request, key=self._order)
        for only_queued, milliseconds in enumerate((request.params.timeout_ms, request.params.max_queue_ms)):
            if milliseconds is not None:
                tie = 2 * request.arrival_order + only_queued
                deadline = request.arrival_time + milliseconds / 1000
                heapq.heappush(self._deadlines, (deadline, tie, request, bool(only_queued)))
        if self._listener is not None:
            self._listener.added(request)

    def finish(self, request: Request, *, reason: str, now: float) -> bool:
        """End a request; its blocks are free as soon as no step in flight uses them.

        Returns whether it ended now: one that is finished is left alone.
        """
        if self._listener is not None and not request.is_finished:
            self._listener.finished(request, reason=reason, now=now)
        return self._finish(request, reason=reason, now=now)

    def stop_at_text(self, request: Request, *, stop: str, now: float) -> None:
        """End a request in whose text a stop string was found, before the next `schedule`.

        If the same token also brought it to its length, the stop string is the better reason.
        """
        if self._listener is not None and not request.is_finished:
            self._listener.finished(request, reason="stop", now=now, at_text=True)
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
            self._lingering[request] = None
        else:
            self.blocks.release(request)
        request.status = Status.FINISHED
        request.finish_reason, request.stop_reason, request.finished_time = reason, stop_reason, now
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
    ) -> Batch | None:
        """Decide and apply one step; None if there is nothing to compute, or nothing before the next `update`.

        `budget`: tokens of this step, if fewer than max_num_batched_tokens. `drafts`: how many tokens after their last
        one some requests would like to compute; they get what is left over. `needs_host`: the step is to run
        synchronously whatever its rows are.
        """
        assert len(self._in_flight) < self.max_steps_in_flight, "update comes first"
        assert not (drafts and self._in_flight), "drafts are guessed from tokens that are known"
        if self._in_flight and self._in_flight[-1].needs_host:
            return None
        was_running = [] if self._listener is None else list(self.running)
        plan = self._plan(min(budget or self._max_num_batched_tokens, self._max_num_batched_tokens), drafts or {})
        batch = self._apply(plan, now, needs_host=needs_host) if plan.num_tokens or plan.preempted else None
        if batch is not None:
            self._in_flight.append(batch)
        if self._listener is not None:
            self._listener.scheduled(self, batch, now=now, budget=budget, drafts=drafts, was_running=was_running)
        return batch

    def _plan(self, budget: int, drafts: Mapping[Request, int]) -> Plan:
        """The policy's first round that gives any request tokens."""
        requests = self._continuing()
        running: dict[Source, list[Request]] = {Source.DECODES: [], Source.CHUNKS: []}
        decodes, chunks = running[Source.DECODES], running[Source.CHUNKS]
        for request in requests:
            (decodes if request.num_uncomputed_tokens == 1 else chunks).append(request)
        for sources in self._policy.rounds:
            room = Room(requests, tokens=budget, blocks=self.blocks.device.num_free_blocks)
            admitted: dict[Request, Prefix] = {}
            for source in sources:
                if source is not Source.WAITING:
                    self._plan_running(room, running[source])
                elif not room.preempted and self._policy.admits(requests):
                    # Not after a preemption: an admission would take the room away from the preempted request.
                    admitted = self._plan_waiting(room)
            if room.num_tokens or room.preempted:
                if self._in_flight and self._depends_on_results(room):
                    return _NOTHING
                if drafts and not room.preempted:
                    self._plan_drafts(room, drafts)
                return Plan(room.num_tokens, room.new_blocks, room.preempted, admitted, room.num_drafts)
        return _NOTHING

    def _continuing(self) -> list[Request]:
        """The running requests without those that reach their length with a step in flight."""
        if not self._in_flight:
            return self.running
        return [r for r in self.running if len(r.token_ids) + r.num_output_placeholders < r.max_num_tokens]

    def _depends_on_results(self, room: Room) -> bool:
        """Whether this cannot be decided before the steps in flight have results.

        The blocks of a preempted request are in use and what it has computed is not known; nor are the tokens that
        sampling on the host reads.
        """
        return bool(room.preempted) or any(request.needs_host_sampling for request in room.num_tokens)

    def _num_tokens_for(self, num_wanted: int, room: Room) -> int:
        """How many of its tokens a request gets; 0 if none can be given."""
        if self._policy.whole_prompts and num_wanted > room.tokens:
            return 0 if room.num_tokens else num_wanted  # longer than the budget: alone
        return min(num_wanted, self._max_chunk, room.tokens)

    def _plan_running(self, room: Room, requests: Iterable[Request]) -> None:
        blocks_to_add = self.blocks.blocks_to_add
        for request in requests:
            if request in room.preempted:
                continue
            num_wanted = request.num_uncomputed_tokens
            num_tokens = self._num_tokens_for(num_wanted, room)
            if num_tokens > 0:
                num_blocks = blocks_to_add(request, request.num_computed_tokens + num_tokens)
                while num_blocks > room.blocks and request not in room.preempted:
                    self._plan_preemption(room)
                if request in room.preempted:
                    continue
                room.give(request, num_tokens, num_blocks)
            if num_wanted > 1:
                promised = blocks_to_add(request, request.num_tokens) - room.new_blocks.get(request, 0)
                room.promised_blocks += promised

    def _plan_preemption(self, room: Room) -> None:
        """Choose the next request to preempt: the latest, but none for the third time while another can be."""
        candidates = [request for request in room.running if request not in room.preempted]
        preferred = [request for request in candidates[1:] if request.num_preemptions < self._costs.max_preemptions]
        victim = (preferred or candidates)[-1]
        can_swap = self.blocks.can_swap_out(victim, room.promised_host_blocks)
        is_swapped = can_swap and self._costs.prefers_swap(victim, self.blocks.device.block_size)
        if is_swapped:
            room.promised_host_blocks += self.blocks.device.num_blocks_for(victim.num_computed_tokens)
        room.preempted[victim] = is_swapped
        room.take_back(victim, self.blocks.num_freed_by(victim, room.preempted))

    def _plan_waiting(self, room: Room) -> dict[Request, Prefix]:
        admitted: dict[Request, Prefix] = {}
        taken: set[int] = set()  # free blocks that those admitted share
        blocks_for = self.blocks.device.num_blocks_for
        for request in self.waiting if self._counters is None else self._counters.order(self.waiting):
            if room.tokens <= 0 or len(room.running) + len(admitted) >= self._max_num_seqs:
                break
            if self._waits_for_its_parent(request, admitted):
                continue
            prefix = self.blocks.find_prefix(request)
            num_computed = max(prefix.num_tokens, request.num_computed_tokens)
            num_tokens = self._num_tokens_for(request.num_tokens - num_computed, room)
            if num_tokens <= 0:
                break
            newly_taken = self.blocks.taken_by(prefix) - taken
            num_taken = len(newly_taken) - len(prefix.blocks)
            whole = blocks_for(request.num_tokens) + num_taken
            watermark = self._watermark if room.running or admitted else 0
            if whole + watermark > room.blocks - room.promised_blocks:
                break
            now = blocks_for(num_computed + num_tokens) + num_taken
            room.give(request, num_tokens, now)
            room.promised_blocks += whole - now
            taken |= newly_taken
            admitted[request] = prefix
        return admitted

    def _plan_drafts(self, room: Room, drafts: Mapping[Request, int]) -> None:
        """Tokens and blocks that are left, to requests that decode in this step. No request is preempted for drafts."""
        block_size = self.blocks.device.block_size
        for request, num_wanted in drafts.items():
            if room.num_tokens.get(request) != 1 or request.num_uncomputed_tokens != 1:
                continue
            num_blocks = room.new_blocks[request]
            num_spare = max(0, room.blocks - room.promised_blocks - self._watermark)
            most_blocks = len(request.block_table) + num_blocks + num_spare
            # One more token comes after the last draft.
            fitting = min(request.max_num_tokens - 1, most_blocks * block_size) - request.num_tokens
            num_drafts = min(num_wanted, room.tokens, fitting)
            if num_drafts > 0:
                num_more = self.blocks.blocks_to_add(request, request.num_tokens + num_drafts) - num_blocks
                room.give_drafts(request, num_drafts, num_more)

    def _waits_for_its_parent(self, request: Request, admitted: Container[Request]) -> bool:
        """Whether the prompt that it shares is being computed: only what a step has computed well may be shared."""
        parent = request.parent
        if parent is None or request.num_output_tokens:
            return False
        if parent.status is not Status.RUNNING and parent not in admitted:
            return False
        rows = (row for batch in self._in_flight for row in batch.rows if row.request is parent)
        num_computed = min((row.start for row in rows), default=parent.num_computed_tokens)
        return num_computed < request.num_prompt_tokens

    # A step is applied.

    def _apply(self, plan: Plan, now: float, *, needs_host: bool) -> Batch:
        for request, is_swapped in plan.preempted.items():
            self._preempt(request, is_swapped=is_swapped)
        for request, prefix in plan.admitted.items():
            self._admit(request, prefix, now)
        for request, prefix in plan.admitted.items():
            self.blocks.restore(request, prefix)
        for request, num_blocks in plan.new_blocks.items():
            if num_blocks:  # most decodes need none
                self.blocks.grow(request, request.num_computed_tokens + plan.num_tokens[request])
        if self.max_steps_in_flight > 1:
            needs_host = needs_host or any(request.needs_host_sampling for request in plan.num_tokens)
        rows = self._rows(plan)
        rows.sort(key=_is_long)
        return Batch(next(self._step), rows, self.blocks.take_moves(), needs_host)

    def _rows(self, plan: Plan) -> list[BatchRow]:
        """The rows, which from now on count as computed."""
        rows, drafts = [], plan.num_drafts
        for request, num_tokens in plan.num_tokens.items():
            start = request.num_computed_tokens
            needs_sampling = num_tokens >= request.num_uncomputed_tokens
            request.num_computed_tokens = start + num_tokens
            if needs_sampling:
                request.num_output_placeholders += 1
            rows.append(BatchRow(request, start, num_tokens, needs_sampling, drafts.get(request, 0) if drafts else 0))
        return rows

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
        if self._lingering:
            self._release_lingering()
        if self._listener is not None:
            self._listener.updated(batch, outputs, progress, now=now)
        return progress

    def _release_lingering(self) -> None:
        for request in [request for request in self._lingering if not self._is_in_flight(request)]:
            del self._lingering[request]
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
        self.blocks.check([*self.running, *self._lingering], self.waiting)
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
        assert all(request.is_finished and self._is_in_flight(request) for request in self._lingering)


def _is_long(row: BatchRow) -> bool:
    return row.num_tokens > 1
