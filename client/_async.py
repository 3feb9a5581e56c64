"""AsyncConnections: connections of an AsyncClient, whose waits suspend a task. _sync.py has the same names."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, cast

import httpx

from .messages import Answer


class AsyncConnections:
    """Connections to one server, for tasks of an event loop."""

    sleep = staticmethod(asyncio.sleep)
    time_limit = staticmethod(asyncio.timeout)

    def __init__(self, transport: httpx.AsyncBaseTransport | None, options: Mapping[str, Any]) -> None:
        self.http = httpx.AsyncClient(transport=transport, **options)
        self._closing: set[asyncio.Task[None]] = set()

    async def send(self, request: httpx.Request, seconds: float | None) -> Answer:
        """Send a request and read the whole answer, within `seconds`."""
        async with asyncio.timeout(seconds):
            response = await self.http.send(request)
        return Answer(response.status_code, response.headers, response.content)

    async def open(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and read the body only of a refusal."""
        response = await self.http.send(request, stream=True)
        if response.status_code != 200:
            await response.aread()
        return response

    def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Return the iterator of a body."""
        return response.aiter_bytes()

    async def close_body(self, response: httpx.Response, chunks: AsyncIterator[bytes] | None = None) -> None:
        """Close a response and the iterator of its body."""
        if chunks is not None:
            with contextlib.suppress(RuntimeError):  # another task reads: its iterator ends with the response
                await cast(AsyncGenerator[bytes, None], chunks).aclose()
        await response.aclose()

    def close_dropped(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start to close a dropped stream. Raises RuntimeError without a running loop: then nothing is sent."""
        task = asyncio.get_running_loop().create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """Wait until every dropped stream is closed, and close the connections."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self.http.aclose()
