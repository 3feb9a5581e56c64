"""RequestQueues: the waiting and the running requests of a scheduler; how requests come and how they end."""

import itertools
from bisect import insort
from collections import Counter, deque
from typing import TYPE_CHECKING

from .batch import Batch
from .block_manager import BlockManager
from .deadlines import Deadlines
from .policies import QUEUE_ORDERS, num_interactive
from .ports import RequestObserver, SchedulerConfig, SchedulerListener
from .request import Request, Status

if TYPE_CHECKING:
    from .fair_queue import TokenCounters


def _counters(config: SchedulerConfig, blocks: BlockManager) -> "TokenCounters | None":
    if config.scheduling_policy != "fair":
        return None
    from .fair_queue import TokenCounters  # no other policy needs it

    pool = (config.max_num_seqs, blocks.device.num_blocks)
    return TokenCounters(config.tenant_weights, pool=pool)


class RequestQueues:
    """Waiting and running requests in queue order, and the blocks of ended ones that a step in flight still uses."""

    def __init__(
        self,
        config: SchedulerConfig,
        blocks: BlockManager,
        *,
        listener: SchedulerListener | None,
        observer: RequestObserver | None,
    ) -> None:
        self.blocks = blocks
        self.observer = observer or RequestObserver()
        self.listeners = [] if listener is None else [listener]
        self.waiting: list[Request] = []  # in queue order
        self.running: list[Request] = []  # in queue order
        self.num_preemptions_by_mode = {"recompute": 0, "swap": 0}
        self._max_num_seqs = config.max_num_seqs
        self._order = QUEUE_ORDERS[config.scheduling_policy]
        self._counters = _counters(config, blocks)
        self._arrivals = itertools.count()
        self._deadlines = Deadlines()
        self._in_flight: deque[Batch] = deque()  # oldest first
        self._finished_in_flight: dict[Request, None] = {}  # finished requests whose blocks a step in flight uses

    @property
    def has_work(self) -> bool:
        """True if a request is not finished."""
        return bool(self.waiting or self.running)

    @property
    def num_preemptions(self) -> int:
        """Number of preemptions of all requests."""
        return sum(self.num_preemptions_by_mode.values())

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
        """Return the running requests that do not reach their length with a step in flight."""
        if not self._in_flight:
            return self.running
        return [r for r in self.running if len(r.token_ids) + r.num_output_placeholders < r.max_num_tokens]

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
