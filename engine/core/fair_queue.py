"""TokenCounters: which tenant is next when tenants compete, by how much each has been served.

Virtual token counters (Sheng et al. 2024, "Fairness in Serving Large Language Models"): a tenant is charged for what it
gets, prompt tokens when a request is admitted and output tokens as they come, divided by its weight; the least charged
one with a request waiting is next. A tenant that returns after a pause starts level with the others: a pause saves
nothing up. Background requests get what no other wants, so they are not charged.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from .request import Request, Status

# An output token costs a whole step's share, a prompt token part of a chunk; the paper's weights.
_PROMPT_WEIGHT = 1.0
_OUTPUT_WEIGHT = 2.0


class TokenCounters:
    """One counter per tenant. Those of tenants long gone are dropped when there are many."""

    def __init__(self, weights: Mapping[str, float] | None = None, *, max_tenants: int = 10_000) -> None:
        """`weights`: a tenant of weight 2 gets twice the tokens of one of weight 1, the default."""
        self._weights = dict(weights or {})
        self._charged: dict[str, float] = {}
        self._max_tenants = max_tenants
        self._level = 0.0  # of the tenant served last: where a tenant starts if none is waiting

    def joined(self, tenant: str, waiting: Sequence[Request]) -> None:
        """A request of this tenant is about to be queued."""
        if any(request.tenant == tenant for request in waiting):
            return
        level = min((self._of(request.tenant) for request in waiting), default=self._level)
        if len(self._charged) >= self._max_tenants and tenant not in self._charged:
            kept = {request.tenant for request in waiting}
            self._charged = {name: value for name, value in self._charged.items() if name in kept}
        self._charged[tenant] = max(self._charged.get(tenant, 0.0), level)

    def admitted(self, request: Request, num_computed: int) -> None:
        """It is scheduled first; what it need not compute is not charged."""
        if not request.is_background:
            self._charge(request.tenant, _PROMPT_WEIGHT * (request.num_prompt_tokens - num_computed))
            self._level = self._charged[request.tenant]

    def produced(self, request: Request) -> None:
        """It got a token."""
        if not request.is_background:
            self._charge(request.tenant, _OUTPUT_WEIGHT)

    def order(self, waiting: Sequence[Request]) -> Iterator[Request]:
        """The waiting requests as they are to be admitted, each charged in turn; preempted ones first."""
        queues: dict[str, deque[Request]] = {}
        for request in waiting:
            if request.status is Status.PREEMPTED:
                yield request
            else:
                queues.setdefault(request.tenant, deque()).append(request)
        level = {tenant: self._of(tenant) for tenant in queues}
        while queues:
            tenant = min(queues, key=lambda name: (level[name], queues[name][0].arrival_order))
            request = queues[tenant].popleft()
            if not queues[tenant]:
                del queues[tenant]
            level[tenant] += _PROMPT_WEIGHT * request.num_prompt_tokens / self._weights.get(tenant, 1.0)
            yield request

    def _of(self, tenant: str) -> float:
        # A request that was running when counters were dropped, and has been preempted since, waits without one.
        return self._charged.get(tenant, self._level)

    def _charge(self, tenant: str, amount: float) -> None:
        self._charged[tenant] = self._of(tenant) + amount / self._weights.get(tenant, 1.0)
