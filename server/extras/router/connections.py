"""Connections: requests to one server's Unix socket over HTTP/1.1, and its answers as they come.

Reads what our own server writes, and no more of HTTP: a general client took most of the router's time for a request.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence

_MOST_KEPT = 16
_SLICE_BYTES = 64 * 1024
Headers = Sequence[tuple[bytes, bytes]]
LOST = (OSError, EOFError)  # the server has ended, or none is there


class Answer:
    """Head of an answer, and its body."""

    def __init__(self, reader: asyncio.StreamReader, head: bytes, *, has_body: bool) -> None:
        first, *lines = head[:-4].split(b"\r\n")
        pairs = (line.split(b": ", 1) for line in lines)
        self.status = int(first[9:12])
        self.headers = [(name.lower(), value) for name, value in pairs]
        self.is_complete = False
        fields = dict(self.headers)
        self.closes = fields.get(b"connection") == b"close"
        has_body = has_body and self.status not in (204, 304)
        self._reader = reader
        self._is_chunked = has_body and fields.get(b"transfer-encoding") == b"chunked"
        self.has_events = self._is_chunked and fields.get(b"content-type", b"").startswith(b"text/event-stream")
        self._num_left = int(fields.get(b"content-length", b"0")) if has_body else 0

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises one of LOST."""
        reader = self._reader
        while self._is_chunked:
            num_bytes = int(await reader.readuntil(b"\r\n"), 16)
            data = await reader.readexactly(num_bytes + 2)
            if num_bytes == 0:
                break
            yield data[:-2]
        while self._num_left:
            if not (data := await reader.read(min(self._num_left, _SLICE_BYTES))):
                raise EOFError
            self._num_left -= len(data)
            yield data
        self.is_complete = True


class Connections:
    """Connections to a server, kept for the next request."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    @contextlib.asynccontextmanager
    async def ask(
        self, method: str, target: bytes, headers: Headers, content: bytes | AsyncIterator[bytes] = b""
    ) -> AsyncIterator[Answer]:
        """Send a request; a body that comes in parts has its length in the headers. Raises one of LOST."""
        reader, writer = await self._open()
        is_free = False
        try:
            lines = [b"%b %b HTTP/1.1" % (method.encode(), target), *map(b": ".join, headers), b"\r\n"]
            head = b"\r\n".join(lines)
            if isinstance(content, bytes):
                writer.write(head + content)
            else:
                writer.write(head)
                await _write(writer, content, is_chunked=(b"transfer-encoding", b"chunked") in headers)
            answer = Answer(reader, await _head(reader), has_body=method != "HEAD")
            yield answer
            is_free = answer.is_complete and not answer.closes and len(self._idle) < _MOST_KEPT
        finally:
            if is_free:
                self._idle.append((reader, writer))
            else:
                writer.transport.abort()

    def close(self) -> None:
        """Close those that are kept."""
        for _, writer in self._idle:
            writer.transport.abort()
        self._idle.clear()

    async def _open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._idle:
            reader, writer = self._idle.pop()
            if not reader.at_eof() and not writer.is_closing():
                return reader, writer
            writer.transport.abort()
        return await asyncio.open_unix_connection(self._path, limit=_SLICE_BYTES)


async def _head(reader: asyncio.StreamReader) -> bytes:
    """Return the head of the answer, past heads of status 1xx: they only say that the server is at work."""
    while (head := await reader.readuntil(b"\r\n\r\n"))[9:10] == b"1":
        pass
    return head


async def _write(writer: asyncio.StreamWriter, content: AsyncIterator[bytes], *, is_chunked: bool) -> None:
    """Write a body as it comes. The server may answer before it has read all."""
    with contextlib.suppress(ConnectionError):
        async for data in content:
            writer.write(b"%x\r\n%b\r\n" % (len(data), data) if is_chunked and data else data)
            await writer.drain()
        writer.write(b"0\r\n\r\n" if is_chunked else b"")
