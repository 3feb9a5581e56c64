"""Scheduler: each step it decides who computes which tokens, and afterwards books what came of it.

A pure state machine: no torch, no clock of its own, no randomness. `schedule` decides (a Plan, which changes nothing)
and applies it; `update` books the results. Between the two, `finish` of a request in flight is put off to `update`,
because the step under way still writes to its blocks.
"""

import itertools
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from .batch import Batch, BatchRow, RowFailure, RowResult, SampledToken
from .blocks import BlockAllocator
from .config import EngineConfig
from .policies import BATCHING_POLICIES, QUEUE_ORDERS
from .request import Request, Status


@dataclass(frozen=True, slots=True)
class Plan:
    """One step's decisions. Nothing has been changed yet."""

    num_tokens: dict[Request, int]  # in the order in which they drew on the budget
    preempted: list[Request]
    admitted: list[Request]


@dataclass(slots=True)
class _Room:
    """What is left to hand out while a plan is made."""

    tokens: int
    blocks: int
    promised_blocks: int = 0  # blocks that admitted prompts will still need; not for newcomers
    num_tokens: dict[Request, int] = field(default_factory=dict)
    new_blocks: dict[Request, int] = field(default_factory=dict)

    def give(self, request: Request, num_tokens: int, num_blocks: int) -> None:
        self.tokens -= num_tokens
        self.blocks -= num_blocks
        self.num_tokens[request] = num_tokens
        self.new_blocks[request] = num_blocks

    def take_back(self, request: Request) -> None:
        self.tokens += self.num_tokens.pop(request, 0)
        self.blocks += self.new_blocks.pop(request, 0) + len(request.block_table)


@dataclass(frozen=True, slots=True)
class Progress:
    """What a step did for one request: a token, its end, or both; the request's finish_reason says which.

    `gap`: seconds since its token before this one, None for the first.
    """

    request: Request
    sampled: SampledToken | None = None
    gap: float | None = None
    failure: RowFailure | None = None


class Scheduler:
    """Continuous batching with chunked prefill over paged blocks; preemption by recompute.

    Progress: the first request in queue order is never a victim of another, and intake admits only requests that fit
    the pool alone, so it always ends; then the next is first.
    """

    def __init__(self, config: EngineConfig, allocator: BlockAllocator) -> None:
        self._allocator = allocator
        self._max_num_seqs = config.max_num_seqs
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._max_chunk = config.long_prefill_token_threshold or config.max_num_batched_tokens
        self._order = QUEUE_ORDERS[config.scheduling_policy]
        self._policy = BATCHING_POLICIES[config.batching_policy]
        # Newcomers leave 1 % of the pool free, so that running requests do not need to preempt at once.
        self._watermark = allocator.num_blocks // 100
        self._arrivals = itertools.count()
        self._step = itertools.count()
        self._in_flight: frozenset[Request] = frozenset()
        self._to_finish: dict[Request, tuple[str, int | str | None]] = {}
        self.waiting: list[Request] = []  # in queue order
        self.running: list[Request] = []  # in queue order
        self.num_preemptions = 0

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished."""
        return bool(self.waiting or self.running)

    def add(self, request: Request) -> None:
        """Queue a request."""
        request.arrival_order = next(self._arrivals)
        insort(self.waiting, request, key=self._order)

    def finish(self, request: Request, *, reason: str, now: float, stop_reason: int | str | None = None) -> bool:
        """End a request and free its blocks; at the end of the step if one is under way with it.

        Returns whether it ended now. Finished requests are left alone, so a second call does nothing.
        """
        if request.is_finished:
            return False
        if request in self._in_flight:
            self._to_finish.setdefault(request, (reason, stop_reason))
            return False
        (self.running if request.status is Status.RUNNING else self.waiting).remove(request)
        self._release(request)
        request.status = Status.FINISHED
        request.finish_reason, request.stop_reason, request.finished_time = reason, stop_reason, now
        return True

    def stop_at_text(self, request: Request, *, stop: str, now: float) -> None:
        """End a request whose text met a stop string, before the next `schedule`.

        If the same token also brought it to its length, the stop string is the better reason.
        """
        if not self.finish(request, reason="stop", stop_reason=stop, now=now):
            request.finish_reason, request.stop_reason = "stop", stop

    def schedule(self, now: float) -> Batch | None:
        """Decide and apply one step; None if there is nothing to compute. Follow it with `update`."""
        assert not self._in_flight, "one step at a time"
        plan = self._plan()
        if not plan.num_tokens and not plan.preempted:
            return None
        return self._apply(plan, now)

    def _plan(self) -> Plan:
        room = _Room(tokens=self._max_num_batched_tokens, blocks=self._allocator.num_free_blocks)
        preempted = self._plan_running(room)
        # Whoever was preempted just now comes first when there is room again; a newcomer would take it away.
        admitted = [] if preempted else self._plan_waiting(room)
        return Plan(room.num_tokens, preempted, admitted)

    def _plan_running(self, room: _Room) -> list[Request]:
        preempted: list[Request] = []
        for request in self._policy.share(self.running):
            if request in preempted:
                continue
            num_tokens = min(request.num_uncomputed_tokens, self._max_chunk, room.tokens)
            if num_tokens:
                blocks = self._blocks_to_add(request, request.num_computed_tokens + num_tokens)
                while blocks > room.blocks and request not in preempted:
                    victim = next(r for r in reversed(self.running) if r not in preempted)
                    room.take_back(victim)
                    preempted.append(victim)
                if request in preempted:
                    continue
                room.give(request, num_tokens, blocks)
            room.promised_blocks += self._blocks_to_add(request, request.num_tokens) - room.new_blocks.get(request, 0)
        return preempted

    def _plan_waiting(self, room: _Room) -> list[Request]:
        admitted: list[Request] = []
        for request in self.waiting:
            if not room.tokens or len(self.running) + len(admitted) >= self._max_num_seqs:
                break
            watermark = self._watermark if self.running or admitted else 0
            whole = self._allocator.num_blocks_for(request.num_tokens)
            if whole + watermark > room.blocks - room.promised_blocks:
                break
            num_tokens = min(request.num_tokens, self._max_chunk, room.tokens)
            blocks = self._allocator.num_blocks_for(num_tokens)
            room.give(request, num_tokens, blocks)
            room.promised_blocks += whole - blocks
            admitted.append(request)
        return admitted

    def _blocks_to_add(self, request: Request, num_tokens: int) -> int:
        return self._allocator.num_blocks_for(num_tokens) - len(request.block_table)

    def _apply(self, plan: Plan, now: float) -> Batch:
        for request in plan.preempted:
            self._preempt(request)
        if plan.admitted:
            del self.waiting[: len(plan.admitted)]
        for request in plan.admitted:
            request.status = Status.RUNNING
            if request.first_scheduled_time is None:
                request.first_scheduled_time = now
            insort(self.running, request, key=self._order)
        for request, num_tokens in plan.num_tokens.items():
            missing = self._blocks_to_add(request, request.num_computed_tokens + num_tokens)
            if missing:
                request.block_table.extend(self._allocator.allocate(missing))
        rows = [
            BatchRow(request, request.num_computed_tokens, n, samples=n == request.num_uncomputed_tokens)
            for request, n in plan.num_tokens.items()
        ]
        rows.sort(key=lambda row: row.num_tokens > 1)
        self._in_flight = frozenset(plan.num_tokens)
        return Batch(next(self._step), rows)

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._release(request)
        request.status = Status.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions += 1
        insort(self.waiting, request, key=self._order)

    def _release(self, request: Request) -> None:
        self._allocator.free(request.block_table)
        request.block_table.clear()
        request.num_computed_tokens = 0

    def update(self, batch: Batch, results: Sequence[RowResult], now: float) -> list[Progress]:
        """Book a step: results[i] is row i's token, its failure, or None where nothing was drawn.

        Advances counts, appends tokens, ends requests that hit a stop token or their length, and those that were
        asked to end meanwhile.
        """
        self._in_flight = frozenset()
        progress = []
        for row, result in zip(batch.rows, results, strict=True):
            request = row.request
            if request in self._to_finish:
                reason, stop_reason = self._to_finish.pop(request)
                self.finish(request, reason=reason, stop_reason=stop_reason, now=now)
                progress.append(Progress(request))
            elif isinstance(result, RowFailure):
                self.finish(request, reason="error", now=now)
                progress.append(Progress(request, failure=result))
            else:
                request.num_computed_tokens = row.end
                if result is not None:
                    assert row.samples
                    progress.append(Progress(request, result, self._append(request, result.token_id, now)))
        assert not self._to_finish, "only requests in flight are put off"
        return progress

    def _append(self, request: Request, token_id: int, now: float) -> float | None:
        request.token_ids.append(token_id)
        gap = None
        if request.last_token_time is None:
            request.first_token_time = now
        else:
            gap = now - request.last_token_time
        request.last_token_time = now
        if token_id in request.stop_token_ids and request.num_output_tokens > request.params.min_tokens:
            own = token_id if token_id in request.params.stop_token_ids else None
            self.finish(request, reason="stop", stop_reason=own, now=now)
        elif request.num_tokens >= request.max_num_tokens:
            self.finish(request, reason="length", now=now)
        return gap

    def check(self) -> None:
        """Prove the invariants; tests call this after every step."""
        self._allocator.check(request.block_table for request in self.running)
        assert self.running == sorted(self.running, key=self._order)
        assert self.waiting == sorted(self.waiting, key=self._order)
        assert not set(self.running) & set(self.waiting)
        assert len(self.running) <= self._max_num_seqs
        for request in self.running:
            assert request.status is Status.RUNNING
            assert request.num_computed_tokens < request.num_tokens <= request.max_num_tokens
            held = len(request.block_table)
            assert self._allocator.num_blocks_for(request.num_computed_tokens) <= held
            assert held <= self._allocator.num_blocks_for(request.num_tokens)
        for request in self.waiting:
            assert request.status in (Status.WAITING, Status.PREEMPTED)
            assert not request.block_table
            assert request.num_computed_tokens == 0
