"""Forwarded requests, and the caller's headers that they keep."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx
import pytest
from starlette.requests import Request
from starlette.types import Message

from splitfuse.server.http.errors import HeldElsewhereError, MovedError
from splitfuse.server.results.shared.forwarder import FORWARDED, Forwarder, _forwarded


async def test_a_preference_to_wait_reaches_the_other_server() -> None:
    headers = [(b"prefer", b"wait=20"), (b"authorization", b"Bearer k"), (b"cookie", b"no")]
    scope = {"type": "http", "method": "GET", "path": "/result/a", "raw_path": b"/result/a", "query_string": b"wait=1"}
    request = Request({**scope, "headers": headers, "scheme": "http", "server": ("here", 80)})
    async with httpx.AsyncClient() as client:
        sent = _forwarded(client, request, "http://there:1")
    assert str(sent.url) == "http://there:1/result/a?wait=1"
    assert sent.headers["prefer"] == "wait=20"
    assert sent.headers["authorization"] == "Bearer k"
    assert sent.headers[FORWARDED] == "1"
    assert "cookie" not in sent.headers


@contextlib.asynccontextmanager
async def other_server(*, size: int, pause_s: float) -> AsyncIterator[str]:
    """Yield the URL of a server whose answers come in pieces of 1,000 bytes, with pauses."""

    tasks = set[asyncio.Task[None]]()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % size)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            for _ in range(size // 1000):
                writer.write(b"1" * 1000)
                await writer.drain()
                await asyncio.sleep(pause_s)
        writer.transport.abort()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def is_held() -> bool:
    return True


async def forwarded(url: str, forwarder: Forwarder) -> bytes:
    """Return the body of the answer of the server at this URL."""
    scope = {"type": "http", "method": "GET", "path": "/result/a", "raw_path": b"/result/a", "query_string": b""}
    request = Request({**scope, "headers": [], "scheme": "http", "server": ("here", 80)}, never)
    try:
        return bytes((await forwarder.answer(request, HeldElsewhereError(url, is_held=is_held))).body)
    finally:
        await forwarder.close()


async def test_an_answer_comes_whole() -> None:
    async with other_server(size=5000, pause_s=0.0) as url:
        assert await forwarded(url, Forwarder()) == b"1" * 5000


@pytest.mark.parametrize(("size", "pause_s"), [(10**9, 0.0), (10**6, 0.05)], ids=["large", "slow"])
async def test_an_answer_without_end_is_given_up(size: int, pause_s: float) -> None:
    async with other_server(size=size, pause_s=pause_s) as url, asyncio.timeout(60):
        with pytest.raises(MovedError):
            await forwarded(url, Forwarder(body_s=0.5, body_bytes=10**6))
