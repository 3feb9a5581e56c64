"""Server-sent events: the frame of an event, and the response that writes frames until the end or a disconnect.

Follows the HTML standard's event stream format; LineStream has lines of JSON instead. The routes decide what the frames
contain.
"""

import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .disconnect import unless_disconnected
from .errors import Problem, describe

# Keys of an ASGI scope.
CHUNK_WRITER = "splitfuse.chunk_writer"  # ChunkWriter, where the answer's body can be written so
FILLER = "splitfuse.filler"  # bytes that a client ignores between two events; without it an SSE comment
SPACE = b" "  # no meaning before a line of JSON


class ChunkWriter(Protocol):
    """Writer of slices of a begun body: some whole events or lines each, or a part of one."""

    @property
    def has_room(self) -> bool:
        """False while the reader has fallen behind."""

    def write_now(self, data: bytes) -> None:
        """Write a slice; write nothing after a disconnect."""

    async def write_chunk(self, data: bytes) -> None:
        """Write a slice once there is room."""


def frame(data: str, *, event: str | None = None, event_id: int | None = None) -> str:
    """Format one event. The data is JSON, so it has no line breaks."""
    if event is None:
        return f"data: {data}\n\n"
    if event_id is None:
        return f"event: {event}\ndata: {data}\n\n"
    return f"id: {event_id}\nevent: {event}\ndata: {data}\n\n"


class EventStream(Response):
    """Response that writes the source's chunks as they come. During a slow write the source gathers more.

    Calls `on_disconnect` if the client leaves, or the server ends, before the source does.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        source: AsyncGenerator[bytes, None],
        *,
        error_frame: Callable[[Problem], bytes],
        on_disconnect: Callable[[], None] = lambda: None,
        headers: Mapping[str, str] | None = None,
        use_writer: Callable[[ChunkWriter], None] = lambda _: None,
    ) -> None:
        """`use_writer` is called before the first chunk with a writer that the source may use while it waits."""
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self._source = source
        self._error_frame = error_frame
        self._on_disconnect = on_disconnect
        self._use_writer = use_writer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_complete = False
        try:
            await unless_disconnected(receive, self._write(send, scope.get(CHUNK_WRITER)))
            is_complete = True
        except ClientDisconnect:
            pass
        finally:
            if not is_complete:
                self._on_disconnect()

    async def _write(self, send: Send, writer: ChunkWriter | None) -> None:
        write = _writer(send) if writer is None else writer.write_chunk
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await write(b"")  # begins the events: comments can now probe if the client is there
        if writer is not None:
            self._use_writer(writer)
        async with contextlib.aclosing(self._source):
            try:
                async for chunk in self._source:
                    await write(chunk)
            except Exception as exc:
                # The status has been sent: an error can only be reported inside the stream.
                await write(self._error_frame(describe(exc)))
                self._on_disconnect()
        await send({"type": "http.response.body", "body": b"", "more_body": False})


class LineStream(EventStream):
    """Like EventStream, but with one JSON object per line."""

    media_type = "application/x-ndjson"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[FILLER] = SPACE
        await super().__call__(scope, receive, send)


def _writer(send: Send) -> Callable[[bytes], Awaitable[None]]:
    """Return a writer over ASGI's `send`, for HTTP/1.0 and for servers other than ours."""

    async def write(chunk: bytes) -> None:
        await send({"type": "http.response.body", "body": chunk, "more_body": True})

    return write
