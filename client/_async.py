"""Differences of the asyncio client: the names of _sync.py, for tasks of an event loop."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar, cast

import httpx

from .messages import Answer

StreamId = str | None  # None until the stream's request is submitted
S = TypeVar("S")

sleep = asyncio.sleep
time_limit = asyncio.timeout


class DroppedStreams:
    """Streams that were dropped without `close`, and the tasks that close them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def close(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start to close a stream. Raises RuntimeError if no event loop runs: then nothing can be sent."""
        task = asyncio.get_running_loop().create_task(close())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait(self) -> None:
        """Wait until every dropped stream is closed."""
        await asyncio.gather(*self._tasks, return_exceptions=True)


def begin(stream: S, start: object) -> S:
    """Return a new stream unstarted: the first event, or `await stream`, submits its request."""
    return stream


async def send(http: httpx.AsyncClient, request: httpx.Request, seconds: float | None) -> Answer:
    """Send a request and read the whole answer, within `seconds`."""
    async with asyncio.timeout(seconds):
        response = await http.send(request)
    return Answer(response.status_code, response.headers, response.content)


async def close_body(response: httpx.Response, chunks: AsyncIterator[bytes]) -> None:
    """Close a response and the iterator of its body."""
    with contextlib.suppress(RuntimeError):  # another task reads: its iterator ends with the response
        await cast(AsyncGenerator[bytes, None], chunks).aclose()
    await response.aclose()
