"""Audit of the pacer's order of prompts: what can be in time is, and who has no goal gets a share."""

from collections.abc import Iterable, Sequence
from itertools import combinations
from typing import Any

from beside_core import CORE_ALONE

from splitfuse.engine.core.batch import Batch
from splitfuse.engine.core.plan import Pace
from splitfuse.engine.core.request import Request

SHARE = 0.1  # of prompt tokens, for requests without a goal
MOST_JOBS = 7  # more are not tried in all subsets


class GoalsAudit:
    """Audit of one core's paces. A pacer without goals passes."""

    def __init__(self, core: Any) -> None:
        self._core = core
        self._group = {"priority": lambda r: r.params.priority, "fair": lambda r: r.tenant}.get(
            core.config.scheduling_policy, lambda r: None
        )
        self._behind = 0.0  # tokens of the share since requests without a goal wait
        self._late: set[Request] = set()  # late once is late for good, even if the clock jumps back
        self.num_reorderings = 0

    def before(self, pace: Pace, now: float) -> None:
        """Check a pace before it is used."""
        self._now = now
        if CORE_ALONE:
            return
        scheduler, order = self._core.scheduler, list(pace.order)
        begun = [r for r in scheduler.running if r.num_uncomputed_tokens > 1 and not r.is_background]
        prompts = [*begun, *(r for r in scheduler.waiting if not r.is_background)]
        config = self._core.config
        if config.scheduling_policy == "fcfs" and config.batching_policy == "splitfuse":
            self._check_on_time(order or prompts, pace)
        if not order:
            return
        self.num_reorderings += 1
        assert sorted(map(id, order)) == sorted(map(id, prompts)), "the order leaves prompts out"
        places, ordered = [self._group(r) for r in prompts], [self._group(r) for r in order]
        assert places == ordered, "a request takes the place of another priority or tenant"

    def _check_on_time(self, order: Sequence[Request], pace: Pace) -> None:
        times = self._core.pacer._times
        running = [r for r in self._core.scheduler.running if not r.is_background]
        decodes = [r for r in running if r.num_uncomputed_tokens == 1]
        begun = [r for r in running if r.num_uncomputed_tokens > 1][:1]
        context = sum(r.num_computed_tokens for r in (*decodes, *begun))
        jobs = [
            (due, times.prompt_s(request, pace.budget, len(decodes), context))
            for request in order
            if (due := self._due(request)) is not None
        ]
        if not jobs or len(jobs) > MOST_JOBS:
            return
        end, num_on_time = self._now, 0
        for due, seconds in jobs:
            end += seconds
            num_on_time += end <= due
        best = most_on_time(jobs, self._now)
        assert num_on_time == best, f"{num_on_time} of {len(jobs)} first tokens can be in time, not {best}"

    def check(self, batch: Batch | None) -> None:
        """Check what a step computes of requests without a goal."""
        if batch is None or self._core.config.scheduling_policy != "fcfs" or not self._core.pacer._due:
            self._behind = 0.0
            return
        without = [r for r in (*self._core.scheduler.running, *self._core.scheduler.waiting) if self._has_none(r)]
        num_tokens = sum(row.num_tokens for row in batch.rows if row.num_tokens > 1)
        num_without = sum(row.num_tokens for row in batch.rows if row.num_tokens > 1 and self._has_none(row.request))
        waits = [r for r in without if r.num_uncomputed_tokens > 1 or not r.num_computed_tokens]
        self._behind = self._behind + SHARE * num_tokens - num_without if waits else 0.0
        is_stuck = self._core.scheduler.running and batch.rows
        most = 8 * self._core.config.max_num_batched_tokens + 64
        assert self._behind <= most or not is_stuck, f"{waits} get no share: {self._behind:g} tokens behind"

    def _has_none(self, request: Request) -> bool:
        return not request.is_background and self._due(request) is None

    def _due(self, request: Request) -> float | None:
        milliseconds = request.params.ttft_ms
        if milliseconds is None or request.first_token_time is not None or request.is_background:
            return None
        due = request.arrival_time + milliseconds / 1000
        if due < self._now:
            self._late.add(request)
        return None if request in self._late else due


def most_on_time(jobs: Iterable[tuple[float, float]], now: float) -> int:
    """Return how many jobs (due time, seconds) can end in time one after the other, by trying all subsets."""
    jobs = list(jobs)
    for count in range(len(jobs), 0, -1):
        for subset in combinations(jobs, count):
            end, is_good = now, True
            for due, seconds in sorted(subset):
                end += seconds
                is_good = is_good and end <= due
            if is_good:
                return count
    return 0
