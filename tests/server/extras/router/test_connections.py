"""Connections to a model's server: bodies however they are framed and cut, kept connections, servers that end."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from splitfuse.server.extras.router.connections import LOST, Connections


@contextlib.asynccontextmanager
async def server_of(path: Path, *answers: bytes) -> AsyncIterator[tuple[Connections, list[bytes]]]:
    """Serve one answer after the other, a byte at a time; yield the requests, with a mark for each connection."""
    seen: list[bytes] = []
    left, num_open, is_quiet = list(answers), 0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal num_open
        num_open += 1
        seen.append(b"connection")
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while left:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"chunked" in head:
                    head += await reader.readuntil(b"0\r\n\r\n")
                seen.append(head)
                for byte in left.pop(0):
                    writer.write(bytes([byte]))
                    await writer.drain()
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
        num_open -= 1
        is_quiet.set() if num_open == 0 else is_quiet.clear()

    async with await asyncio.start_unix_server(serve, str(path)):
        connections = Connections(str(path))
        try:
            yield connections, seen
        finally:
            connections.close()
            async with asyncio.timeout(20):
                await is_quiet.wait()


async def body_of(connections: Connections, method: str = "GET", **more: AsyncIterator[bytes]) -> bytes:
    headers = [(b"transfer-encoding", b"chunked")] * bool(more)
    async with connections.ask(method, b"/path?x", [(b"host", b"localhost"), *headers], **more) as answer:
        return b"".join([chunk async for chunk in answer.chunks()])


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\na\r\n\r\n10\r\n0\r\n\r\n0123456789a\r\n0\r\n\r\n"
COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nfive!"


async def test_answers_however_they_are_framed_on_one_connection(tmp_path: Path) -> None:
    working = b"HTTP/1.1 100 Continue\r\n\r\n" + COUNTED
    empty = b"HTTP/1.1 204 No Content\r\n\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n"
    async with server_of(tmp_path / "socket", CHUNKED, COUNTED, working, *empty, COUNTED) as (connections, seen):
        assert await body_of(connections) == b"a\r\n0\r\n\r\n0123456789a"
        assert await body_of(connections) == b"five!"
        assert await body_of(connections) == b"five!"
        assert await body_of(connections) == b""
        assert await body_of(connections, "HEAD") == b""
        assert await body_of(connections) == b"five!"
        assert seen.count(b"connection") == 1
        assert seen[1] == b"GET /path?x HTTP/1.1\r\nhost: localhost\r\n\r\n"


async def test_a_body_that_comes_in_parts_is_passed_on_in_parts(tmp_path: Path) -> None:
    async def parts() -> AsyncIterator[bytes]:
        for part in (b"one", b"", b"two"):
            yield part

    async with server_of(tmp_path / "socket", COUNTED) as (connections, seen):
        assert await body_of(connections, "POST", content=parts()) == b"five!"
        assert seen[1].endswith(b"\r\n\r\n3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


async def test_a_connection_that_was_left_or_closed_is_not_used_again(tmp_path: Path) -> None:
    closing = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    async with server_of(tmp_path / "socket", CHUNKED, closing, COUNTED) as (connections, seen):
        async with connections.ask("GET", b"/", []) as answer:
            assert await anext(answer.chunks()) == b"a\r\n"  # and no more
        await body_of(connections)
        await body_of(connections)
        assert seen.count(b"connection") == 3


@pytest.mark.parametrize("length", [0, 10, len(COUNTED) - 1, len(CHUNKED) - 1])
async def test_a_server_that_ends_is_lost(tmp_path: Path, length: int) -> None:
    with pytest.raises(LOST):
        await body_of(Connections(str(tmp_path / "socket")))
    answer = (CHUNKED if length > len(COUNTED) else COUNTED)[:length]
    async with server_of(tmp_path / "socket", answer) as (connections, _):
        with pytest.raises(LOST):
            await body_of(connections)
