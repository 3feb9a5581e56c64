"""Asker: one request to a model among several, in one of five ways, until it has its whole answer, whatever dies."""

import asyncio
import json
import time
from collections import Counter
from typing import Any, NamedTuple

import httpx

from splitfuse.client.sse import SSEParser

WAYS = ("accepted", "chat", "streamed", "durable", "batch")
NUM_LINES = 3  # of a batch
PAUSE_S = 0.2
_KEPT = ("outputs", "status", "error")


class Question(NamedTuple):
    """Request whose answer is known: way, model, number of its body."""

    way: str
    model: str
    number: int


def body_of(question: Question, num_tokens: int) -> dict[str, Any]:
    """Return a body, greedy or sampled with a seed."""
    text = f"Once upon a time there were {question.number} "
    said = {"messages": [{"role": "user", "content": text}]} if question.way == "chat" else {"prompt": text}
    sampling = {"temperature": 0.8 if question.number % 2 else 0.0, "seed": question.number, "ignore_eos": True}
    return {"model": question.model, "max_tokens": num_tokens, **sampling, **said}


class Asker:
    """Asks one question. `first_s` is the time of the answer's first byte."""

    def __init__(self, client: httpx.AsyncClient, question: Question, *, number: int, num_tokens: int) -> None:
        """`client` has a key. `number` names the request, so that it can be repeated."""
        self.question = question
        self.ids: list[str] = []  # of the results and batches that are kept
        self.faults: list[str] = []
        self.counts: Counter[str] = Counter()  # broken connections, refusals
        self.begin_s = self.first_s = self.end_s = 0.0
        self._client = client
        self._body = body_of(question, num_tokens)
        self._headers = {"Idempotency-Key": f"turns-{number}"}
        self._last_id = -1

    async def run(self) -> Any:
        """Return the answer, in a form that any way of asking the same question has in common."""
        self.begin_s = time.monotonic()
        answer: Any = await getattr(self, f"_{self.question.way}")()
        self.end_s = time.monotonic()
        self._note_first(self.end_s)
        return answer

    async def _accepted(self) -> Any:
        job = await self._sent("POST", "/generate", json={**self._body, "logprobs": 1})
        self._note_first(time.monotonic())
        self.ids.append(job["seq_id"])
        return await self._result(job["result_url"])

    async def _chat(self) -> Any:
        return (await self._sent("POST", "/v1/chat/completions", json=self._body))["choices"]

    async def _plain(self) -> Any:
        return (await self._sent("POST", "/v1/completions", json=self._body))["choices"][0]["text"]

    async def _streamed(self) -> Any:
        while True:
            texts: list[str] = []
            async for event in self._events("POST", "/v1/completions", json={**self._body, "stream": True}):
                if event.data == "[DONE]":
                    return "".join(texts)
                texts.append(json.loads(event.data)["choices"][0]["text"])

    async def _durable(self) -> Any:
        body, url = {**self._body, "logprobs": 1, "stream": True, "durable": True}, ""
        while True:
            place = ("GET", f"{url}/stream") if url else ("POST", "/generate")
            headers = {"Last-Event-ID": str(self._last_id)} if self._last_id >= 0 else {}
            async for event in self._events(*place, json=None if url else body, more=headers):
                if event.event == "head":
                    url = event.data
                    self.ids.append(url.rpartition("/")[2])
                elif event.event == "token":
                    self._check_next(int(event.id or -1))
                else:
                    return _comparable(json.loads(event.data))

    async def _batch(self) -> Any:
        lines = [
            json.dumps({"custom_id": str(n), "method": "POST", "url": "/v1/completions", "body": self._body})
            for n in range(NUM_LINES)
        ]
        parts: dict[str, Any] = {
            "files": {"file": ("lines.jsonl", "\n".join(lines).encode())},
            "data": {"purpose": "batch"},
        }
        file = await self._sent("POST", f"/v1/files?model={self.question.model}", **parts)
        self._note_first(time.monotonic())
        body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
        batch = await self._sent("POST", "/v1/batches", json=body)
        self.ids.append(batch["id"])
        while batch["status"] in ("validating", "in_progress", "finalizing"):
            await asyncio.sleep(5 * PAUSE_S)
            batch = await self._sent("GET", f"/v1/batches/{batch['id']}")
        rows, failed = [await self._lines_of(batch[name]) for name in ("output_file_id", "error_file_id")]
        if sorted(row["custom_id"] for row in (*rows, *failed)) != [str(n) for n in range(NUM_LINES)]:
            self.faults.append(f"lines {[row['custom_id'] for row in rows]} of a batch")
        # A line under which processes die again and again may be the cause.
        self.faults += [f"a line of a batch: {row}" for row in failed if "interrupted" not in json.dumps(row)]
        texts = {row["response"]["body"]["choices"][0]["text"] for row in rows}
        return texts.pop() if len(texts) == 1 else sorted(texts)

    async def _lines_of(self, file_id: str | None) -> list[Any]:
        if file_id is None:
            return []
        return [
            json.loads(line)
            for line in (await self._sent("GET", f"/v1/files/{file_id}/content", is_json=False)).splitlines()
        ]

    async def _result(self, url: str) -> Any:
        while True:
            result = await self._sent("GET", f"{url}?wait=5")
            if result["status"] not in ("queued", "running"):
                return _comparable(result)

    async def _sent(self, method: str, path: str, *, is_json: bool = True, **parts: Any) -> Any:
        """Send until there is an answer, and return its body."""
        while True:
            try:
                answer = await self._client.request(method, path, headers=self._headers, **parts)
            except httpx.TransportError:
                self.counts["broken"] += 1
            else:
                if answer.status_code in (200, 202):
                    return answer.json() if is_json else answer.text
                self._refused(answer.status_code, answer.text)
            await asyncio.sleep(PAUSE_S)

    async def _events(self, method: str, path: str, *, json: Any, more: Any = None) -> Any:
        """Yield the events until the connection ends, and first the answer's place, as an event `head`."""
        parser, headers = SSEParser(), {**self._headers, **(more or {})}
        try:
            async with self._client.stream(method, path, json=json, headers=headers) as answer:
                if answer.status_code != 200:
                    self._refused(answer.status_code, (await answer.aread()).decode())
                    await asyncio.sleep(PAUSE_S)
                    return
                if method == "POST" and "location" in answer.headers:
                    yield Head("head", answer.headers["location"])
                async for chunk in answer.aiter_bytes():
                    for event in parser.feed(chunk):
                        self._note_first(time.monotonic())
                        yield event
        except httpx.TransportError:
            self.counts["broken"] += 1
            await asyncio.sleep(PAUSE_S)

    def _check_next(self, event_id: int) -> None:
        if event_id != self._last_id + 1:
            self.faults.append(f"event {event_id} after {self._last_id}")
        self._last_id = event_id

    def _refused(self, status: int, text: str) -> None:
        """Note a refusal after which a client asks again; any other is a fault."""
        self.counts[f"{status}"] += 1
        if status not in (429, 503):
            raise RuntimeError(f"{self.question}: {status} {text[:300]}")

    def _note_first(self, now: float) -> None:
        self.first_s = self.first_s or now


class Head(NamedTuple):
    """Place of an answer, as if it were an event."""

    event: str
    data: str
    id: str | None = None


def _comparable(result: dict[str, Any]) -> dict[str, Any]:
    return {name: result[name] for name in _KEPT}
