"""Tenants of unequal greed that all want more than they get: what each is served, beside its share.

Service is the fair queue's: a prompt token that is not cached counts 1, an output token 2.
"""

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx
from soak.operations import WORDS, expect

LEAST_SERVICE = 200_000  # below it a request more or less in the window is a large part of a share
TOLERANCE = 0.1  # of the share


@dataclass(frozen=True)
class Tenant:
    """Tenant with `num_clients` that send one request after the other, of so many words and tokens."""

    name: str
    weight: int
    num_clients: int
    n: int
    num_words: tuple[int, int]
    max_tokens: tuple[int, int]


# All their sequences fit neither the seats nor the blocks, and all that wait fit the queue.
TENANTS = (
    Tenant("long", 1, 4, 4, (1, 5), (100, 160)),
    Tenant("steady", 1, 12, 1, (10, 30), (30, 90)),
    Tenant("short", 1, 16, 1, (1, 20), (1, 20)),
    Tenant("paid", 2, 14, 1, (40, 100), (10, 40)),
)


class Competition:
    """Competition of the tenants, window by window, and what they got in all."""

    def __init__(self) -> None:
        self.service = Counter[str]()
        self._running: dict[str, Tenant] = {}  # URLs of results

    async def window(self, url: str, seed: int, *, seconds: float) -> None:
        """Let all tenants compete for `seconds`, then delete what is left. Raises AssertionError."""
        rng = random.Random(seed)
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=url, timeout=120.0, trust_env=False, limits=limits) as client:
            clients = [
                asyncio.create_task(self._client(client, tenant, random.Random(rng.random())))
                for tenant in TENANTS
                for _ in range(tenant.num_clients)
            ]
            done, _ = await asyncio.wait(clients, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in clients:
                task.cancel()
            await asyncio.gather(*clients, return_exceptions=True)
            for task in done:
                task.result()
            unfinished = await asyncio.gather(*map(client.get, self._running))
            for tenant, response in zip(self._running.values(), unfinished, strict=True):
                self._count(tenant, response.json())
            await asyncio.gather(*map(client.delete, self._running))
            self._running.clear()

    async def _client(self, client: httpx.AsyncClient, tenant: Tenant, rng: random.Random) -> None:
        while True:
            body = {
                "prompt": " ".join(rng.choices(WORDS, k=rng.randint(*tenant.num_words))),
                "max_tokens": rng.randint(*tenant.max_tokens),
                "ignore_eos": True,
                "n": tenant.n,
                "user": tenant.name,
            }
            response = await client.post("/generate", json=body)
            expect(response, 202)
            result_url = response.json()["result_url"]
            self._running[result_url] = tenant
            response = await client.get(result_url, params={"wait": 60})
            expect(response, 200)
            del self._running[result_url]
            self._count(tenant, response.json())

    def _count(self, tenant: Tenant, result: dict[str, Any]) -> None:
        usage = result["usage"]
        if usage["completion_tokens"]:
            num_read = usage["prompt_tokens"] - usage["cached_tokens"]
            self.service[tenant.name] += num_read + 2 * usage["completion_tokens"]

    def parts(self) -> dict[str, float]:
        """Return each tenant's service as a multiple of its share."""
        weights, total = sum(tenant.weight for tenant in TENANTS), max(self.service.total(), 1)
        return {tenant.name: self.service[tenant.name] / total * weights / tenant.weight for tenant in TENANTS}

    def faults(self) -> list[str]:
        """Return what is wrong with the shares, if there was enough service to tell."""
        if self.service.total() < LEAST_SERVICE:
            return []
        return [
            f"{name} got {part:.2f} of its share in {dict(self.service)}"
            for name, part in self.parts().items()
            if abs(part - 1) > TOLERANCE
        ]
