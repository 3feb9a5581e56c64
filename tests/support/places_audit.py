"""Audit of the places that tenants hold: who gives way to whom under "fair", for how long, and the limit per key."""

import math
from collections.abc import Sequence

from splitfuse.engine.config import ResolvedConfig
from splitfuse.engine.core.plan import Plan
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.scheduler import Scheduler

MAX_PREEMPTIONS = 2
LEAST_CLOSED = 16  # steps for which a place stays closed to the tenant that gave it up


class PlacesAudit:
    """Audit of plans, from the blocks and sequences that tenants held before each."""

    def __init__(self, config: ResolvedConfig, scheduler: Scheduler) -> None:
        self._config = config
        self._scheduler = scheduler
        self._pool = scheduler.blocks.device
        self._weights = config.tenant_weights or {}
        self._closed: dict[str, list[tuple[int, int]]] = {}  # tenants that gave way: most sequences, up to which step
        self._num_steps = 0
        self.plan = Plan()
        planner, plan = scheduler._planner, scheduler._planner.plan

        def planned(*queues: object, **more: object) -> Plan:
            self.plan = plan(*queues, **more)  # type: ignore[arg-type]
            return self.plan

        planner.plan = planned  # type: ignore[method-assign]

    def before(self) -> None:
        """Record the blocks that are held before a decision, and the tenants' service."""
        self._held = {request: len(request.block_table) for request in self._scheduler.running}
        self._caught_up = {r for r in self._held if not r.num_preemptions or r.num_uncomputed_tokens <= 1}
        counters = self._scheduler._counters
        tenants = {request.tenant for request in (*self._scheduler.running, *self._scheduler.waiting)}
        self._charged = {} if counters is None else {tenant: counters._of(tenant) for tenant in tenants}

    def check(self, running: Sequence[Request], *, is_admitting: bool) -> None:
        """Check the last plan. `running`: the requests that ran before the plan was applied."""
        self._num_steps += 1
        for request in self.plan.over_limit:
            num_running = sum(other.tenant == request.tenant for other in (*running, *self.plan.admitted))
            assert num_running >= self._most(request.tenant), f"{request} waits, but its tenant may run more"
        for tenant in {request.tenant for request in self.plan.admitted}:
            ending = set(self._held) - set(running)
            num_running = sum(r.tenant == tenant and r not in ending for r in self._scheduler.running)
            assert num_running <= self._most(tenant), f"{num_running} sequences of {tenant} run"
        if self._config.scheduling_policy != "fair":
            assert not self.plan.gave_way
        elif self.plan.gave_way:
            self._check_gave_way(list(running))
        else:
            self._check_preempted(list(running))
            if not is_admitting and not self.plan.preempted and self.plan.stops:
                self._check_nothing_is_owed(running)

    def _most(self, tenant: str) -> float:
        closed = [most for most, until in self._closed.get(tenant, ()) if self._num_steps <= until]
        return min([self._config.max_seqs_per_key or math.inf, *closed[-1:]])

    def _check_gave_way(self, running: list[Request]) -> None:
        request = self.plan.stops[0].request
        is_full = len(running) >= self._config.max_num_seqs
        num_missing = self._pool.num_blocks_for(request.num_tokens) + self._pool.num_blocks // 100
        victims = self.plan.gave_way
        wanted = [max(self._held[victim], self._pool.num_blocks_for(victim.num_tokens)) for victim in victims]
        kept = [other for other in running if other not in victims]
        promised = [self._pool.num_blocks_for(other.num_tokens) - len(other.block_table) for other in kept]
        num_spare = self._pool.num_free_blocks - sum(promised) - sum(wanted)
        assert is_full or num_spare < num_missing, f"{victims} gave way for nothing"
        for victim in victims:
            expected = self._next_victim(request, running)
            assert victim is expected, f"{victim} gave way to {request}, not {expected}"
            running.remove(victim)
        for victim in victims:
            num_left = sum(other.tenant == victim.tenant for other in self._scheduler.running)
            until = self._num_steps + max(LEAST_CLOSED, victim.num_tokens // 4)
            earlier = [end for _, end in self._closed.get(victim.tenant, ())]
            self._closed[victim.tenant] = [(num_left, max([until, *earlier]))]

    def _check_nothing_is_owed(self, running: Sequence[Request]) -> None:
        stop = self.plan.stops[0]
        if stop.reason == "sequences":
            victim = self._next_victim(stop.request, list(running))
            assert victim is None, f"{stop.request} waits, but {victim} should give way"

    def _next_victim(self, request: Request, running: list[Request]) -> Request | None:
        """Return the sequence to give way: the latest of the largest tenant that keeps more than the request gets."""
        tenant = request.tenant
        own = self._share(tenant, running, 1, self._pool.num_blocks_for(request.num_tokens))
        others = dict.fromkeys(other.tenant for other in running if other.tenant != tenant)
        others = {name: None for name in others if self._charged[name] >= self._charged[tenant]}
        for name in sorted(others, key=lambda name: -self._share(name, running)):
            latest = self._latest([other for other in running if other.tenant == name])
            if latest is not None and self._share(name, [other for other in running if other is not latest]) >= own:
                return latest
        return None

    def _latest(self, requests: Sequence[Request]) -> Request | None:
        def position(request: Request) -> tuple[bool, int, int]:
            is_often = self._num_preemptions_before(request) >= MAX_PREEMPTIONS
            return (not is_often, request.params.priority, request.arrival_order)

        return max((request for request in requests if request in self._caught_up), key=position, default=None)

    def _check_preempted(self, running: list[Request]) -> None:
        """Check victims of a lack of blocks: the latest of the largest tenant, unless preempted often."""
        for victim in self.plan.preempted:
            seldom = [r for r in running[1:] if self._num_preemptions_before(r) < MAX_PREEMPTIONS]
            largest = max([self._share(request.tenant, running) for request in seldom], default=0.0)
            expected = [r for r in seldom if r.tenant == victim.tenant][-1:] or running[-1:]
            assert [victim] == expected, f"{victim} was preempted before {expected}"
            assert not seldom or self._share(victim.tenant, running) == largest, f"{victim} is not of the largest"
            running.remove(victim)

    def _num_preemptions_before(self, request: Request) -> int:
        return request.num_preemptions - (request in self.plan.preempted)

    def _share(self, tenant: str, running: Sequence[Request], num_more: int = 0, num_blocks_more: int = 0) -> float:
        held = [self._held[request] for request in running if request.tenant == tenant]
        most = self._config.max_num_seqs
        part = max((len(held) + num_more) / most, (sum(held) + num_blocks_more) / self._pool.num_blocks)
        return part / self._weights.get(tenant, 1.0)
