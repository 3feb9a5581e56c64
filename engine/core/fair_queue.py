"""TokenCounters: chooses the next tenant when tenants compete, and the sequences that give way to it.

Virtual token counters (Sheng et al. 2024, "Fairness in Serving Large Language Models"): a tenant is charged for prompt
tokens when a request is admitted and for output tokens as they come, divided by its weight. The least charged tenant
with a request waiting is next. A tenant that returns after a pause starts level with the others: a pause saves nothing
up. Background requests get the tokens that no other request wants, so they are not charged.

    share of a tenant = max(its sequences / max_num_seqs, its blocks / all blocks) / its weight

A waiting request takes the place of a tenant that still has the larger share afterwards, so no two tenants take turns.
"""

import math
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence

from .block_manager import BlockManager
from .preemption_costs import MAX_PREEMPTIONS
from .request import Request, Status

# An output token costs a whole step's share, a prompt token part of a chunk; the paper's weights.
_PROMPT_WEIGHT = 1.0
_OUTPUT_WEIGHT = 2.0
# Steps for which a place that was given up stays closed to its old tenant: an empty seat may cost about as much as
# computing the victim again when the next request needs the seat.
_LEAST_CLOSED, _CLOSED_PER_TOKEN = 16, 0.25


class TokenCounters:
    """Counter per tenant. If there are many, the counters of tenants long gone are dropped."""

    def __init__(
        self, weights: Mapping[str, float] | None = None, *, pool: tuple[int, int] = (1, 1), max_tenants: int = 10_000
    ) -> None:
        """`weights`: a tenant of weight 2 gets twice the tokens of one of weight 1, the default.

        `pool`: the most sequences that run, and the number of blocks.
        """
        self._pool = pool
        self._weights = dict(weights or {})
        self._charged: dict[str, float] = {}
        self._max_tenants = max_tenants
        self._last = ""  # tenant served last
        self._level = 0.0  # its counter: a new tenant starts there if none is waiting
        self._num_steps = 0
        self._ceilings: dict[str, tuple[int, int]] = {}  # tenants that gave way: most sequences, up to which step

    def joined(self, tenant: str, waiting: Sequence[Request]) -> None:
        """Bring the tenant of a request that is about to be queued level with the waiting ones."""
        if any(request.tenant == tenant for request in waiting):
            return
        level = min((self._of(request.tenant) for request in waiting), default=self._level)
        if len(self._charged) >= self._max_tenants and tenant not in self._charged:
            waiting_tenants = {request.tenant for request in waiting}
            self._charged = {name: value for name, value in self._charged.items() if name in waiting_tenants}
        self._charged[tenant] = max(self._charged.get(tenant, 0.0), level)

    def admitted(self, request: Request, num_computed: int) -> None:
        """Charge a request that is scheduled first for its prompt, without its `num_computed` tokens from the cache."""
        if not request.is_background:
            self._last = request.tenant
            self._charge(request.tenant, _PROMPT_WEIGHT * (request.num_prompt_tokens - num_computed))

    def produced(self, request: Request) -> None:
        """Charge a request for a token of output."""
        if not request.is_background:
            self._charge(request.tenant, _OUTPUT_WEIGHT)

    def order(self, waiting: Sequence[Request]) -> Iterator[Request]:
        """Yield the waiting requests in order of admission, as if each were charged in turn.

        Preempted requests come first within their tenant.
        """
        queues: dict[str, deque[Request]] = {}
        for request in sorted(waiting, key=lambda request: request.status is not Status.PREEMPTED):
            queues.setdefault(request.tenant, deque()).append(request)
        level = {tenant: self._of(tenant) for tenant in queues}
        while queues:
            tenant = min(queues, key=lambda name: (level[name], queues[name][0].arrival_order))
            request = queues[tenant].popleft()
            if not queues[tenant]:
                del queues[tenant]
            if request.status is not Status.PREEMPTED:
                level[tenant] += _PROMPT_WEIGHT * request.num_prompt_tokens / self._weights.get(tenant, 1.0)
            yield request

    def most_running(self, tenant: str) -> float:
        """Return how many sequences the tenant may run at once; all but for some steps after it has given way."""
        most, until = self._ceilings.get(tenant, (0, 0))
        return most if self._num_steps < until else math.inf

    def decided(self, gave_way: Iterable[Request], running: Iterable[Request]) -> None:
        """Count a step. The places that were given up in it stay closed to their tenants for some steps."""
        self._num_steps += 1
        for request in gave_way:
            num_steps = max(_LEAST_CLOSED, int(_CLOSED_PER_TOKEN * request.num_tokens))
            until = max(self._num_steps + num_steps, self._ceilings.get(request.tenant, (0, 0))[1])
            self._ceilings = {name: value for name, value in self._ceilings.items() if value[1] > self._num_steps}
            self._ceilings[request.tenant] = (sum(other.tenant == request.tenant for other in running), until)

    def victims(
        self, request: Request, running: Sequence[Request], blocks: BlockManager, *, num_missing: int
    ) -> list[Request]:
        """Return sequences whose places a waiting request gets, and `num_missing` blocks; none if they may not go.

        The tenant with the largest share loses its latest sequence, then again, while its share stays at least as large
        as the one that the waiting tenant then has. A tenant that was charged less loses none.
        """
        tenant, victims, num_freed = request.tenant, list[Request](), 0
        holdings = Holdings(running, pool=self._pool, weights=self._weights)
        least = holdings.share(tenant, num_more=1, num_blocks_more=blocks.device.num_blocks_for(request.num_tokens))
        rivals = [name for name in holdings.tenants if name != tenant and self._of(name) >= self._of(tenant)]
        while not victims or num_freed < num_missing:
            victim = holdings.take_latest(rivals, least=least)
            if victim is None:
                return []
            victims.append(victim)
            num_freed += blocks.num_freed_by(victim, victims)
        return victims

    def of_largest(self, requests: Sequence[Request], running: Sequence[Request]) -> list[Request]:
        """Return the requests of the tenant with the largest share, of `requests`."""
        holdings = Holdings(running, pool=self._pool, weights=self._weights)
        tenant = max(dict.fromkeys(request.tenant for request in requests), key=holdings.share)
        return [request for request in requests if request.tenant == tenant]

    def _of(self, tenant: str) -> float:
        # A request that was running when counters were dropped, and has been preempted since, waits without one.
        return self._charged.get(tenant, self._level)

    def _charge(self, tenant: str, amount: float) -> None:
        self._charged[tenant] = self._of(tenant) + amount / self._weights.get(tenant, 1.0)
        if tenant == self._last:
            self._level = self._charged[tenant]


class Holdings:
    """Sequences and blocks that each tenant has in a step, less the sequences that `take_latest` took."""

    def __init__(self, running: Iterable[Request], *, pool: tuple[int, int], weights: Mapping[str, float]) -> None:
        """`pool`: max_num_seqs and the number of blocks."""
        self._max_num_seqs, self._num_blocks = pool
        self._weights = weights
        self.tenants: dict[str, list[Request]] = {}
        self._num_held = Counter[str]()  # blocks; a block that two sequences share counts twice
        for request in running:
            self.tenants.setdefault(request.tenant, []).append(request)
            self._num_held[request.tenant] += len(request.block_table)

    def share(self, tenant: str, *, num_more: int = 0, num_blocks_more: int = 0) -> float:
        """Return the share of a tenant that has some more sequences and blocks."""
        num_seqs = len(self.tenants.get(tenant, ())) + num_more
        part = max(num_seqs / self._max_num_seqs, (self._num_held[tenant] + num_blocks_more) / self._num_blocks)
        return part / self._weights.get(tenant, 1.0)

    def take_latest(self, tenants: Iterable[str], *, least: float) -> Request | None:
        """Take a sequence from the tenant with the largest share, which must keep `least`; None if there is none.

        A sequence that catches up after a preemption stays, so that each return brings a token. Other sequences go
        before one that was preempted twice, then the least urgent, then the latest.
        """
        for tenant in sorted(tenants, key=self.share, reverse=True):  # ties: queue order
            if self.share(tenant) < least:
                return None
            latest = max((r for r in self.tenants[tenant] if not _catches_up(r)), key=_gives_way, default=None)
            num_blocks = 0 if latest is None else len(latest.block_table)
            if latest is not None and self.share(tenant, num_more=-1, num_blocks_more=-num_blocks) >= least:
                self.tenants[tenant].remove(latest)
                self._num_held[tenant] -= num_blocks
                return latest
        return None


def _catches_up(request: Request) -> bool:
    return request.num_preemptions > 0 and request.num_uncomputed_tokens > 1


def _gives_way(request: Request) -> tuple[bool, int, int]:
    return (request.num_preemptions < MAX_PREEMPTIONS, request.params.priority, request.arrival_order)
