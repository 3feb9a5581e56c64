"""TokenCounters: chooses the next tenant when tenants compete, by the tokens that each of them has got.

Virtual token counters (Sheng et al. 2024, "Fairness in Serving Large Language Models"): a tenant is charged for prompt
tokens when a request is admitted and for output tokens as they come, divided by its weight. The least charged tenant
with a request waiting is next. A tenant that returns after a pause starts level with the others: a pause saves nothing
up. Background requests get the tokens that no other request wants, so they are not charged.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from .request import Request, Status

# An output token costs a whole step's share, a prompt token part of a chunk; the paper's weights.
_PROMPT_WEIGHT = 1.0
_OUTPUT_WEIGHT = 2.0


class TokenCounters:
    """Counter per tenant. If there are many, the counters of tenants long gone are dropped."""

    def __init__(self, weights: Mapping[str, float] | None = None, *, max_tenants: int = 10_000) -> None:
        """`weights`: a tenant of weight 2 gets twice the tokens of one of weight 1, the default."""
        self._weights = dict(weights or {})
        self._charged: dict[str, float] = {}
        self._max_tenants = max_tenants
        self._level = 0.0  # counter of the tenant served last: a new tenant starts there if none is waiting

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
            self._charge(request.tenant, _PROMPT_WEIGHT * (request.num_prompt_tokens - num_computed))
            self._level = self._charged[request.tenant]

    def produced(self, request: Request) -> None:
        """Charge a request for a token of output."""
        if not request.is_background:
            self._charge(request.tenant, _OUTPUT_WEIGHT)

    def order(self, waiting: Sequence[Request]) -> Iterator[Request]:
        """Yield the waiting requests in order of admission, as if each were charged in turn; preempted ones first."""
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
