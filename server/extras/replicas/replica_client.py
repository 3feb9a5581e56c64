"""ReplicaClient: the supervisor's requests to replicas, which bypass HAProxy."""

import asyncio
from collections.abc import Mapping

import httpx

from .placement import Address

_ANSWER_S = 5.0


class ReplicaClient:
    """HTTP client for replicas."""

    def __init__(self) -> None:
        self._client = httpx.AsyncClient(timeout=_ANSWER_S, trust_env=False)

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def is_ready(self, address: Address) -> bool:
        """True if the replica has loaded its model and accepts work."""
        answer = await self.get(address, "/ready", headers={})
        return answer is not None and answer.status_code == 200

    async def get(self, address: Address, path: str, *, headers: Mapping[str, str]) -> httpx.Response | None:
        """Return the replica's answer, None if there is none."""
        try:
            async with asyncio.timeout(_ANSWER_S):  # httpx's own limit is one of each read
                return await self._client.get(f"http://{address}{path}", headers=dict(headers))
        except (httpx.HTTPError, TimeoutError):
            return None
