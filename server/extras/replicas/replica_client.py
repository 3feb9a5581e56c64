"""ReplicaClient: the supervisor's requests to replicas, which bypass HAProxy."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import httpx

from .placement import Address

_ANSWER_S = 5.0


class ReplicaClient:
    """HTTP client for replicas. `keys`: an admin key, or else all keys, each of which sees its own requests."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._own_headers = [{"Authorization": f"Bearer {key}"} for key in keys] or [{}]
        self._client = httpx.AsyncClient(timeout=_ANSWER_S, trust_env=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def is_ready(self, address: Address) -> bool:
        """True if the replica has loaded its model and accepts work."""
        answer = await self.get(address, "/ready", headers={})
        return answer is not None and answer.status_code == 200

    async def has_work(self, address: Address) -> bool:
        """True if requests run or wait on the replica, or results are kept. Also True without an answer."""
        for headers in self._own_headers:
            answer = await self.get(address, "/stats", headers=headers)
            if answer is None or answer.status_code != 200:
                return True
            stats: dict[str, Any] = answer.json()
            if any(stats.get(name) for name in ("num_running", "num_waiting", "num_results")):
                return True
        return False

    async def get(self, address: Address, path: str, *, headers: Mapping[str, str]) -> httpx.Response | None:
        """Return the replica's answer, None if there is none."""
        try:
            async with asyncio.timeout(_ANSWER_S):  # httpx's own limit is one of each read
                return await self._client.get(f"http://{address}{path}", headers=dict(headers))
        except (httpx.HTTPError, TimeoutError):
            return None
