"""Audit of a fair queue: the service it owes to tenants, derived from the service they got."""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations

from splitfuse.engine.config import ResolvedConfig
from splitfuse.engine.core.batch import BatchRow
from splitfuse.engine.core.request import Request, Status

PROMPT_WEIGHT, OUTPUT_WEIGHT = 1, 2  # weights of a token of service


class FairnessAudit:
    """Audit that tenants with waiting requests are served by weight, up to the bound of Sheng et al. 2024.

    Twice the bound, because one tenant may be ahead by it when both begin to wait. Weights are at least 1 here.
    """

    def __init__(self, config: ResolvedConfig, *, longest: int) -> None:
        running = OUTPUT_WEIGHT * longest * config.max_num_seqs
        self._bound = 2 * max(PROMPT_WEIGHT * longest, running) + 2 * longest
        self._weights = config.tenant_weights or {}
        self._most = config.max_seqs_per_key or math.inf
        self._served: dict[str, float] = {}  # service divided by weight
        self._ahead: dict[tuple[str, str], float] = {}  # lead of the first when both began to wait

    def served(self, begun: Iterable[BatchRow], with_tokens: Iterable[Request]) -> None:
        """Count the first rows of requests in a step (cached tokens are no service), and a request per token."""
        for row in begun:
            self._serve(row.request.tenant, PROMPT_WEIGHT * (row.request.num_prompt_tokens - row.start))
        for request in with_tokens:
            self._serve(request.tenant, OUTPUT_WEIGHT)

    def check(self, waiting: Sequence[Request], running: Sequence[Request]) -> None:
        """Check after a step. A tenant that runs as many sequences as a key may run is owed nothing."""
        num_running = Counter(request.tenant for request in running)
        tenants = {r.tenant for r in waiting if r.status is Status.WAITING and r.parent is None}
        tenants = {tenant for tenant in tenants if num_running[tenant] < self._most}
        ahead = {
            (one, other): self._served.get(one, 0) - self._served.get(other, 0)
            for one, other in combinations(sorted(tenants), 2)
        }
        self._ahead = {pair: self._ahead.get(pair, now) for pair, now in ahead.items()}
        for pair, now in ahead.items():
            gained = abs(now - self._ahead[pair])
            assert gained <= self._bound, (
                f"one of {pair} got {gained:g} more while both waited; the bound is {self._bound}"
            )

    def _serve(self, tenant: str, amount: int) -> None:
        self._served[tenant] = self._served.get(tenant, 0.0) + amount / self._weights.get(tenant, 1.0)
