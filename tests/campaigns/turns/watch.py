"""Watch: what an operator sees of the models' states, and the bound on waits that follows from it."""

import asyncio
import contextlib
import time
from collections import Counter

import httpx

PAUSE_S = 0.1


class Watch:
    """Longest loads and unloads so far, and the number of loads, from `GET /v1/models`."""

    def __init__(self, client: httpx.AsyncClient, *, turn_s: float) -> None:
        self.longest: Counter[str] = Counter()  # seconds by state
        self.num_loads = 0
        self.work_s = 0.0  # of the longest answer, from its first byte
        self._client = client
        self._turn_s = turn_s

    async def run(self) -> None:
        """Look until cancelled."""
        since: dict[str, tuple[str, float]] = {}
        while True:
            with contextlib.suppress(httpx.TransportError):
                entries = (await self._client.get("/v1/models")).json()["data"]
                now = time.monotonic()
                for entry in entries:
                    name, state = entry["id"], entry["state"]
                    before, begin = since.get(name, ("", now))
                    self.longest[before] = max(self.longest[before], now - begin)  # type: ignore[assignment]
                    if state != before:
                        since[name] = (state, now)
                        self.num_loads += state == "loading"
            await asyncio.sleep(PAUSE_S)

    def slot_s(self) -> float:
        """Return the longest time that one model ahead in the line may take: its turn, its work and the swap."""
        load_s, leave_s = self.longest["loading"], self.longest["unloading"]
        return max(self._turn_s, load_s) + self.work_s + leave_s + load_s
