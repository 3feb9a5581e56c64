"""Scheduler: each step it decides who computes which tokens, and afterwards books what came of it.

A pure state machine: no torch, no clock of its own, no randomness. `schedule` decides (a Plan, which changes nothing)
and applies it; `update` books the results. Between the two, `finish` of a request in flight is put off to `update`,
because the step under way still writes to its blocks.
"""

import heapq
import itertools
from bisect import insort
from collections.abc import Container, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..batch import Batch, BatchRow, RowFailure, RowResult, SampledRun, SampledToken
from ..config import EngineConfig
from ..request import Request, Status
from .block_manager import BlockManager, Prefix
from .fair_queue import TokenCounters
from .plan import Plan, Room
from .policies import BATCHING_POLICIES, QUEUE_ORDERS, Source
from .preemption import PreemptionCosts

_FEW_DEADLINES = 64  # not worth looking through


class Progress(NamedTuple):
    """What a step did for one request: tokens, its end, or both; the request's finish_reason says which.

    `gap`: seconds since its tokens before these, None for the first.
    """

    request: Request
    sampled: tuple[SampledToken, ...] = ()
    gap: float | None = None
    failure: RowFailure | None = None


class Scheduler:
    """Continuous batching with chunked prefill over paged blocks; preemption by recompute or swap.

    Progress: the first request in queue order is never a victim of another, and intake admits only requests that fit
    the pool alone, so it always ends; then the next is first.
    """

    def __init__(self, config: EngineConfig, blocks: BlockManager) -> None:
        self._blocks = blocks
        self._max_num_seqs = config.max_num_seqs
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._policy = BATCHING_POLICIES[config.batching_policy]
        limit = config.long_prefill_token_threshold
        self._max_chunk = limit if limit and not self._policy.whole_prompts else 2**31
        self._order = QUEUE_ORDERS[config.scheduling_policy]
        self._counters = TokenCounters(config.tenant_weights) if config.scheduling_policy == "fair" else None
        self._costs = PreemptionCosts(config.preemption_mode)
        # Newcomers leave 1 % of the pool free, so that running requests do not need to preempt at once.
        self._watermark = blocks.device.num_blocks // 100
        self._arrivals = itertools.count()
        self._step = itertools.count()
        self._deadlines: list[tuple[float, int, Request, bool]] = []  # heap of (when, tie, who, only if not begun)
        self._in_flight: frozenset[Request] = frozenset()
        self._to_finish: dict[Request, tuple[str, int | str | None]] = {}
        self.waiting: list[Request] = []  # in queue order
        self.running: list[Request] = []  # in queue order
        self.num_preemptions_by_mode = {"recompute": 0, "swap": 0}

    @property
    def has_work(self) -> bool:
        """Whether any request is not finished."""
        return bool(self.waiting or self.running)

    @property
    def num_preemptions(self) -> int:
        """How often a request had to give way."""
        return sum(self.num_preemptions_by_mode.values())

    @property
    def costs(self) -> PreemptionCosts:
        """What preemption is thought to cost; the engine tells it what it measures."""
        return self._costs

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
        self._let_go(request)
        request.status = Status.FINISHED
        request.finish_reason, request.stop_reason, request.finished_time = reason, stop_reason, now
        return True

    def _let_go(self, request: Request) -> None:
        """Free what a request that ends has held."""
        self._blocks.release(request)

    def expire(self, now: float) -> list[Request]:
        """End requests whose time is over. Returns them."""
        assert not self._in_flight, "between steps"
        ended = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, _, request, only_queued = heapq.heappop(self._deadlines)
            has_begun = request.first_scheduled_time is not None
            if not (only_queued and has_begun) and self.finish(request, reason="timeout", now=now):
                ended.append(request)
        # Most requests end long before their deadline, which can be a day away, and would be kept until then.
        if len(self._deadlines) > 4 * (len(self.waiting) + len(self.running)) + _FEW_DEADLINES:
            self._deadlines = [deadline for deadline in self._deadlines if not deadline[2].is_finished]
            heapq.heapify(self._deadlines)
        return ended

    def stop_at_text(self, request: Request, *, stop: str, now: float) -> None:
        """End a request whose text met a stop string, before the next `schedule`.

        If the same token also brought it to its length, the stop string is the better reason.
        """
        if not self.finish(request, reason="stop", stop_reason=stop, now=now):
            request.finish_reason, request.stop_reason = "stop", stop

    def cut(self, request: Request, num_tokens: int) -> None:
        """Drop the tokens of a finished request that came with its last step, but behind its end."""
        assert request.is_finished
        del request.token_ids[num_tokens:]

    def schedule(
        self, now: float, *, budget: int | None = None, drafts: Mapping[Request, int] | None = None
    ) -> Batch | None:
        """Decide and apply one step; None if there is nothing to compute. Follow it with `update`.

        `budget`: tokens of this step, if fewer than max_num_batched_tokens. `drafts`: how many tokens behind their last
        one some requests would like to compute; they get what nobody else wants.
        """
        assert not self._in_flight, "one step at a time"
        plan = self._plan(min(budget or self._max_num_batched_tokens, self._max_num_batched_tokens), drafts or {})
        if not plan.num_tokens and not plan.preempted:
            return None
        return self._apply(plan, now)

    def _plan(self, budget: int, drafts: Mapping[Request, int]) -> Plan:
        """The policy's first round that gives anybody tokens."""
        running: dict[Source, list[Request]] = {Source.DECODES: [], Source.CHUNKS: []}
        decodes, chunks = running[Source.DECODES], running[Source.CHUNKS]
        for request in self.running:
            (decodes if request.num_uncomputed_tokens == 1 else chunks).append(request)
        for sources in self._policy.rounds:
            room = Room(tokens=budget, blocks=self._blocks.device.num_free_blocks)
            admitted: dict[Request, Prefix] = {}
            for source in sources:
                if source is not Source.NEWCOMERS:
                    self._plan_running(room, running[source])
                elif not room.preempted and self._policy.joins(self.running):
                    # After a preemption nobody joins: a newcomer would take the room away from who just gave way.
                    admitted = self._plan_waiting(room)
            if room.num_tokens or room.preempted:
                if drafts and not room.preempted:
                    self._plan_drafts(room, drafts)
                return Plan(room.num_tokens, room.new_blocks, room.preempted, admitted, room.num_drafts)
        return Plan({}, {}, {}, {}, {})

    def _num_tokens_for(self, num_wanted: int, room: Room) -> int:
        """How many of its tokens a request gets; 0 if none can be given."""
        if self._policy.whole_prompts and num_wanted > room.tokens:
            return 0 if room.num_tokens else num_wanted  # longer than the budget: alone
        return min(num_wanted, self._max_chunk, room.tokens)

    def _plan_running(self, room: Room, requests: Iterable[Request]) -> None:
        blocks_to_add = self._blocks.blocks_to_add
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
        """Choose the next victim: the latest, but nobody for the third time while others can give way."""
        candidates = [request for request in self.running if request not in room.preempted]
        spared = [request for request in candidates[1:] if request.num_preemptions < self._costs.max_preemptions]
        victim = (spared or candidates)[-1]
        can_swap = self._blocks.can_swap_out(victim, room.promised_host_blocks)
        is_swapped = can_swap and self._costs.prefers_swap(victim, self._blocks.device.block_size)
        if is_swapped:
            room.promised_host_blocks += self._blocks.device.num_blocks_for(victim.num_computed_tokens)
        room.preempted[victim] = is_swapped
        room.take_back(victim, self._blocks.num_freed_by(victim, room.preempted))

    def _plan_waiting(self, room: Room) -> dict[Request, Prefix]:
        admitted: dict[Request, Prefix] = {}
        taken: set[int] = set()  # free blocks that those admitted share
        blocks_for = self._blocks.device.num_blocks_for
        for request in self.waiting if self._counters is None else self._counters.order(self.waiting):
            if room.tokens <= 0 or len(self.running) + len(admitted) >= self._max_num_seqs:
                break
            if self._waits_for_its_leader(request, admitted):
                continue
            prefix = self._blocks.find_prefix(request)
            num_computed = max(prefix.num_tokens, request.num_computed_tokens)
            num_tokens = self._num_tokens_for(request.num_tokens - num_computed, room)
            if num_tokens <= 0:
                break
            newly_taken = self._blocks.taken_by(prefix) - taken
            num_taken = len(newly_taken) - len(prefix.blocks)
            whole = blocks_for(request.num_tokens) + num_taken
            watermark = self._watermark if self.running or admitted else 0
            if whole + watermark > room.blocks - room.promised_blocks:
                break
            now = blocks_for(num_computed + num_tokens) + num_taken
            room.give(request, num_tokens, now)
            room.promised_blocks += whole - now
            taken |= newly_taken
            admitted[request] = prefix
        return admitted

    def _plan_drafts(self, room: Room, drafts: Mapping[Request, int]) -> None:
        """Tokens and blocks that are left, to requests that decode in this step. Drafts never make anybody give way."""
        block_size = self._blocks.device.block_size
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
                num_more = self._blocks.blocks_to_add(request, request.num_tokens + num_drafts) - num_blocks
                room.give_drafts(request, num_drafts, num_more)

    def _waits_for_its_leader(self, request: Request, admitted: Container[Request]) -> bool:
        """Whether the prompt that it shares is being computed just now."""
        leader = request.leader
        if leader is None or request.num_output_tokens:
            return False
        is_running = leader.status is Status.RUNNING or leader in admitted
        return is_running and leader.num_computed_tokens < request.num_prompt_tokens

    def _apply(self, plan: Plan, now: float) -> Batch:
        for request, is_swapped in plan.preempted.items():
            self._preempt(request, is_swapped=is_swapped)
        for request, prefix in plan.admitted.items():
            self._admit(request, prefix, now)
        for request, prefix in plan.admitted.items():
            self._blocks.bring_back(request, prefix)
        for request, num_blocks in plan.new_blocks.items():
            if num_blocks:  # most decodes need none
                self._blocks.grow(request, request.num_computed_tokens + plan.num_tokens[request])
        rows = [
            BatchRow(
                request,
                request.num_computed_tokens,
                n,
                samples=n >= request.num_uncomputed_tokens,
                num_drafts=plan.num_drafts.get(request, 0),
            )
            for request, n in plan.num_tokens.items()
        ]
        rows.sort(key=lambda row: row.num_tokens > 1)
        self._in_flight = frozenset(plan.num_tokens)
        return Batch(next(self._step), rows, self._blocks.take_moves())

    def _preempt(self, request: Request, *, is_swapped: bool) -> None:
        self.running.remove(request)
        if is_swapped:
            self._blocks.swap_out(request)
        else:
            request.num_read_tokens = max(request.num_read_tokens, request.num_computed_tokens)
            self._blocks.release(request)
        request.status = Status.PREEMPTED
        request.num_preemptions += 1
        self.num_preemptions_by_mode["swap" if is_swapped else "recompute"] += 1
        insort(self.waiting, request, key=self._order)

    def _admit(self, request: Request, prefix: Prefix, now: float) -> None:
        self.waiting.remove(request)
        self._blocks.admit(request, prefix)
        request.status = Status.RUNNING
        if request.first_scheduled_time is None:
            request.first_scheduled_time = now
            if self._counters is not None:
                self._counters.admitted(request, request.num_computed_tokens)
        insort(self.running, request, key=self._order)

    def update(self, batch: Batch, results: Sequence[RowResult], now: float) -> list[Progress]:
        """Book a step: results[i] is row i's token or tokens, its failure, or None where nothing was drawn.

        Advances counts, appends tokens, ends requests that hit a stop token or their length, and those that were
        asked to end meanwhile.
        """
        self._in_flight = frozenset()
        progress = []
        for row, result in zip(batch.rows, results, strict=True):
            request = row.request
            if isinstance(result, RowFailure):
                self._blocks.forget(request)
            if request in self._to_finish:
                reason, stop_reason = self._to_finish.pop(request)
                self.finish(request, reason=reason, stop_reason=stop_reason, now=now)
                progress.append(Progress(request))
            elif isinstance(result, RowFailure):
                self.finish(request, reason="error", now=now)
                progress.append(Progress(request, failure=result))
            else:
                request.num_computed_tokens = row.end - row.num_drafts
                self._blocks.remember(request, row.start)
                if result is not None:
                    assert row.samples
                    progress.append(self._take(request, result, now))
                if row.num_drafts and not request.is_finished:
                    self._blocks.give_back(request)
        assert not self._to_finish, "only requests in flight are put off"
        return progress

    def _take(self, request: Request, drawn: SampledToken | SampledRun, now: float) -> Progress:
        """Append what was drawn, until the request ends. All but the first stand behind drafts that were right, which
        are computed.
        """
        if isinstance(drawn, SampledToken):
            return Progress(request, (drawn,), self._append(request, drawn, now))
        request.num_draft_tokens += drawn.num_drafts
        request.num_accepted_tokens += len(drawn.tokens) - 1
        first, *others = drawn.tokens
        gap, taken = self._append(request, first, now), [first]
        for token in others:
            if request.is_finished:
                break
            request.num_computed_tokens += 1
            self._blocks.remember(request, request.num_computed_tokens - 1)
            self._append(request, token, now)
            taken.append(token)
        return Progress(request, tuple(taken), gap)

    def _append(self, request: Request, sampled: SampledToken, now: float) -> float | None:
        token_id = sampled.token_id
        request.token_ids.append(token_id)
        if self._counters is not None:
            self._counters.produced(request)
        gap = None
        if request.last_token_time is None:
            request.first_token_time = now
        else:
            gap = now - request.last_token_time
        request.last_token_time = now
        if token_id in request.stop_token_ids and request.num_output_tokens > request.params.min_tokens:
            own = token_id if token_id in request.params.stop_token_ids else None
            self.finish(request, reason="stop", stop_reason=own, now=now)
        elif sampled.finish_reason is not None:
            self.finish(request, reason=sampled.finish_reason, now=now)
        elif request.num_tokens >= request.max_num_tokens:
            self.finish(request, reason="length", now=now)
        return gap

    def _holders(self) -> list[Request]:
        """Whose block tables are in force."""
        return self.running

    def check(self) -> None:
        """Prove the invariants; tests call this after every step."""
        self._blocks.check(self._holders(), self.waiting)
        assert self.running == sorted(self.running, key=self._order)
        assert self.waiting == sorted(self.waiting, key=self._order)
        assert not set(self.running) & set(self.waiting)
        assert len(self.running) <= self._max_num_seqs
        for request in self.running:
            assert request.status is Status.RUNNING
            assert request.num_computed_tokens < request.num_tokens <= request.max_num_tokens
            held = len(request.block_table)
            assert not request.host_block_table
            assert self._blocks.device.num_blocks_for(request.num_computed_tokens) <= held
            assert held <= self._blocks.device.num_blocks_for(request.num_tokens)
        for request in self.waiting:
            assert request.status in (Status.WAITING, Status.PREEMPTED)
