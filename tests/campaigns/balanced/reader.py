"""Reader of one job through a balancer, like a client: submits, and resumes the stream wherever it breaks off."""

import asyncio
import json
from typing import Any

import httpx


class Reader:
    """Reader of a job's events to their end, and then of its result."""

    def __init__(self, client: httpx.AsyncClient, number: int, body: dict[str, Any]) -> None:
        self.number = number
        self.body = body
        self.seq_id = ""
        self.num_breaks = 0
        self.result: dict[str, Any] = {}
        self._client = client
        self._events: list[tuple[int, str, dict[str, Any]]] = []

    async def run(self) -> None:
        """Submit, poll or stream, then read the result."""
        await self._submit()
        while self.number % 4 and not self._has_ended:  # one reader in four only polls
            await self._read()
        self.result = await self._polled()

    def faults(self) -> list[str]:
        """Return faults: lost or repeated events, wrong tokens."""
        ids = [event_id for event_id, _, _ in self._events]
        token_ids = [token for _, kind, data in self._events if kind == "token" for token in data["token_ids"]]
        found = []
        if self.result.get("status") != "completed":
            found.append(f"job {self.number}: {self.result}")
        elif self._events and token_ids != self.result["token_ids"]:
            found.append(f"job {self.number}: its events have other tokens than its result")
        if ids != list(range(len(ids))):
            found.append(f"job {self.number}: events {ids}")
        return found

    @property
    def _has_ended(self) -> bool:
        return bool(self._events) and self._events[-1][1] != "token"

    async def _submit(self) -> None:
        headers = {"Idempotency-Key": f"job-{self.number}", "X-Session-Id": f"session-{self.number % 8}"}
        while True:
            try:
                answer = await self._client.post("/generate", json=self.body, headers=headers)
            except httpx.HTTPError:
                answer = None  # a broken connection: the key makes the retry find the job
            if answer is not None and answer.status_code == 202:
                self.seq_id = answer.json()["seq_id"]
                return
            if answer is not None and answer.status_code not in (502, 503, 504):
                raise RuntimeError(f"job {self.number}: {answer.status_code} {answer.text}")
            await asyncio.sleep(0.2)

    async def _read(self) -> None:
        """Read events until the stream ends or breaks off."""
        headers = {"Last-Event-ID": str(len(self._events) - 1)} if self._events else {}
        try:
            async with self._client.stream("GET", f"/result/{self.seq_id}/stream", headers=headers) as response:
                if response.status_code == 200:
                    await self._take(response)
                elif response.status_code == 404:
                    raise RuntimeError(f"job {self.number} is lost: {await response.aread()!r}")
        except httpx.HTTPError:
            pass
        if not self._has_ended:
            self.num_breaks += 1
            await asyncio.sleep(0.2)

    async def _take(self, response: httpx.Response) -> None:
        text = ""
        async for part in response.aiter_text():
            text += part
            *blocks, text = text.split("\n\n")
            for block in blocks:
                if not block.startswith(":"):
                    fields = dict(line.split(": ", 1) for line in block.splitlines())
                    self._events.append((int(fields["id"]), fields["event"], json.loads(fields["data"])))

    async def _polled(self) -> dict[str, Any]:
        while True:
            try:
                answer = await self._client.get(f"/result/{self.seq_id}?wait=10")
            except httpx.HTTPError:
                await asyncio.sleep(0.2)
                continue
            if answer.status_code == 404:
                return {"lost": answer.text}
            if answer.status_code == 200 and answer.json()["status"] not in ("queued", "running"):
                found: dict[str, Any] = answer.json()
                return found
            await asyncio.sleep(0.2)
