"""Stand-in server: answers the native endpoints from a script, and fails on demand."""

import asyncio
import json
import threading
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

CHUNKS = ["Once", " upon", " a", " time", " 🐢", " naïve", "…\u2028", "end"]
TEXT = "".join(CHUNKS)
SEQ_ID = "a-secret_id"

Fault = Callable[[], Response]


@dataclass(frozen=True)
class Cut:
    """Early end of a stream connection, after `events` events."""

    events: int
    how: Literal["broken", "ended", "inside an event", "inside a character"] = "broken"


@dataclass
class Script:
    """Script of the server's next answers, and record of the requests."""

    chunks: list[str] = field(default_factory=lambda: list(CHUNKS))
    faults: dict[str, deque[Fault]] = field(default_factory=lambda: defaultdict(deque))  # faults by kind of request
    cuts: deque[Cut] = field(default_factory=deque)  # cuts of the next stream connections
    hold_after: int | None = None  # number of events before a silence that lasts until the request is cancelled
    unfinished_polls: int = 0  # number of reads that find the request still running
    honours_wait: bool = False  # if True, a read of an unfinished request lasts `wait` seconds
    stream_error: dict[str, Any] | None = None  # replaces the `done` event
    error: dict[str, Any] | None = None  # error of the result, whose status then is failed
    seen: list[tuple[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[dict[str, Any]] = field(default_factory=list)
    polled: threading.Event = field(default_factory=threading.Event)
    cancelled: threading.Event = field(default_factory=threading.Event)

    def paths(self, method: str) -> list[str]:
        """Return the paths of the requests with that method."""
        return [path for seen, path in self.seen if seen == method]


def refusal(status: int, *, kind: str = "rate_limit_error", retry_after: str | None = None, **more: Any) -> Fault:
    """Return an error answer with the envelope."""
    envelope = {"message": f"refused with {status}", "type": kind, "param": None, "code": None, **more}
    headers = {} if retry_after is None else {"retry-after": retry_after}
    return lambda: JSONResponse({"error": envelope}, status, headers=headers)


def page(status: int = 200, body: str = "<html>not what you think</html>") -> Fault:
    """Return an answer in the manner of some other server."""
    return lambda: Response(body, status, media_type="text/html")


class StandIn:
    """Stand-in server: `app` is the application, `url` the address at which a test serves it."""

    def __init__(self) -> None:
        self.script = Script()
        self.url = ""
        self.app = Starlette(
            routes=[
                Route("/ready", self._plain),
                Route("/health", self._plain),
                Route("/generate", self._submit, methods=["POST"]),
                Route("/result/{seq_id}", self._read, methods=["GET"]),
                Route("/result/{seq_id}/stream", self._stream, methods=["GET"]),
                Route("/result/{seq_id}", self._cancel, methods=["DELETE"]),
            ]
        )

    def _note(self, kind: str, request: Request) -> Fault | None:
        script = self.script
        query = f"?{request.url.query}" if request.url.query else ""
        script.seen.append((request.method, request.url.path + query))
        script.headers.append(dict(request.headers))
        return script.faults[kind].popleft() if script.faults[kind] else None

    async def _plain(self, request: Request) -> Response:
        fault = self._note("plain", request)
        return fault() if fault else JSONResponse({})

    async def _submit(self, request: Request) -> Response:
        fault = self._note("submit", request)
        self.script.bodies.append(json.loads(await request.body()))
        if fault:
            return fault()
        urls = {"result_url": f"/result/{SEQ_ID}", "stream_url": f"/result/{SEQ_ID}/stream"}
        return JSONResponse({"seq_id": SEQ_ID, "status": "queued", **urls, "new": 1}, 202, {"retry-after": "1"})

    async def _read(self, request: Request) -> Response:
        fault = self._note("read", request)
        self.script.polled.set()
        if fault:
            return fault()
        if self.script.unfinished_polls > 0:
            self.script.unfinished_polls -= 1
            if self.script.honours_wait:
                await asyncio.sleep(float(request.query_params.get("wait", 0)))
            return JSONResponse(self.result("running", self.script.chunks[:2]))
        return JSONResponse(self.result("failed" if self.script.error else "completed", self.script.chunks))

    async def _cancel(self, request: Request) -> Response:
        fault = self._note("cancel", request)
        self.script.cancelled.set()
        return fault() if fault else JSONResponse(self.result("cancelled", []))

    async def _stream(self, request: Request) -> Response:
        fault = self._note("stream", request)
        if fault:
            return fault()
        after = request.headers.get("last-event-id")
        cut = self.script.cuts.popleft() if self.script.cuts else None
        events = self._events(int(after) + 1 if after is not None else 0, cut)
        return StreamingResponse(events, media_type="text/event-stream")

    async def _events(self, first: int, cut: Cut | None) -> AsyncIterator[bytes]:
        script = self.script
        yield b": ping\n\n"
        for position, index in enumerate(range(first, len(script.chunks) + 1)):
            if cut and position == cut.events:
                yield self._event(index)[: self._cut_at(index, cut)]
                if cut.how == "ended":
                    return
                raise ConnectionError("cut on demand")
            if position == script.hold_after:
                await asyncio.to_thread(script.cancelled.wait, 30)
                return
            yield self._event(index)

    def _event(self, index: int) -> bytes:
        if index < len(self.script.chunks):
            data = {"index": 0, "text": self.script.chunks[index], "token_ids": [index], "new": 1}
            return f"id: {index}\nevent: token\ndata: {json.dumps(data, ensure_ascii=False)}\n\n".encode()
        if self.script.stream_error is not None:
            return f"event: error\ndata: {json.dumps({'error': self.script.stream_error})}\n\n".encode()
        return (
            f"id: {index}\nevent: done\ndata: {json.dumps(self.result('completed', self.script.chunks))}\n\n".encode()
        )

    def _cut_at(self, index: int, cut: Cut) -> int:
        event = self._event(index)
        if cut.how == "inside an event":
            return len(event) - 1
        if cut.how == "inside a character":
            return next((at + 1 for at, byte in enumerate(event) if byte > 127), len(event) // 2)
        return 0

    def result(self, status: str, chunks: list[str]) -> dict[str, Any]:
        """Return a result object with keys that no client knows."""
        is_running = status == "running"
        output = {
            "index": 0,
            "text": "".join(chunks),
            "token_ids": list(range(len(chunks))),
            "finish_reason": None if is_running else "length",
            "stop_reason": None,
        }
        usage = {"prompt_tokens": 5, "completion_tokens": len(chunks), "total_tokens": 5 + len(chunks), "new": 1}
        return {
            **{name: output[name] for name in ("text", "token_ids", "finish_reason", "stop_reason")},
            "seq_id": SEQ_ID,
            "status": status,
            "model": "stand-in",
            "outputs": [output | {"logprobs": None, "new": 1}],
            "usage": usage,
            "timings": {"queue_s": 0.1, "ttft_s": None if is_running else 0.2, "new": 1},
            "error": self.script.error,
            "new": {"nested": True},
        }
