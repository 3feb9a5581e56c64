"""Server-sent events: frames built by hand, and the response that writes them until the end or until nobody reads.

Follows the HTML standard's event stream format. What the frames mean is the routes' business.
"""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .disconnect import unless_hung_up
from .errors import Problem, describe
from .h11_protocol import WRITE_CHUNK
from .json_response import dumps

PING = b": ping\n\n"
PING_S = 15.0
DONE = b"data: [DONE]\n\n"
# Most events in one write: a re-attached reader gets a long answer in pieces, so that others get their turn.
MAX_BATCH = 512

ErrorFrame = Callable[[Problem], bytes]


def frame(data: str, *, event: str, event_id: int) -> bytes:
    """One event. The data is JSON, so it has no line breaks."""
    return f"id: {event_id}\nevent: {event}\ndata: {data}\n\n".encode("ascii")


def frame_of_pieces(pieces: list[bytes], *, event: str, event_id: int) -> list[bytes]:
    """One event whose data comes in pieces."""
    head = f"id: {event_id}\nevent: {event}\ndata: ".encode("ascii")
    return [head + pieces[0], *pieces[1:-1], pieces[-1] + b"\n\n"] if pieces[1:] else [head + pieces[0] + b"\n\n"]


def data_frame(data: str) -> bytes:
    """One event of data alone, as OpenAI's routes send."""
    return f"data: {data}\n\n".encode("ascii")


def openai_error_frame(problem: Problem) -> bytes:
    """A failure inside an OpenAI stream."""
    return data_frame(dumps(problem.envelope()))


def native_error_frame(problem: Problem) -> bytes:
    """A failure inside a native stream that has no event id of its own."""
    return f"event: error\ndata: {dumps(problem.envelope())}\n\n".encode("ascii")


class EventStream(Response):
    """Writes the source's chunks as they come; while a write waits for a slow reader, the source gathers more.

    Calls `on_hang_up` if the client leaves, or the server ends, before the source does.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        *,
        error_frame: ErrorFrame,
        on_hang_up: Callable[[], None] = lambda: None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._source = source
        self._error_frame = error_frame
        self._on_hang_up = on_hang_up

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_complete = False
        try:
            await unless_hung_up(receive, self._write(send, scope.get(WRITE_CHUNK) or _writer(send)))
            is_complete = True
        except ClientDisconnect:
            pass
        finally:
            if not is_complete:
                self._on_hang_up()

    async def _write(self, send: Send, write: Callable[[bytes], Awaitable[None]]) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        async with contextlib.aclosing(self._source):
            try:
                async for chunk in self._source:
                    await write(chunk)
            except Exception as exc:
                # The status is out already: the stream itself is the only place left to say it.
                await write(self._error_frame(describe(exc)))
                self._on_hang_up()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _writer(send: Send) -> Callable[[bytes], Awaitable[None]]:
    """ASGI's own way, for HTTP/1.0 and for other servers than ours."""

    async def write(chunk: bytes) -> None:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})

    return write
