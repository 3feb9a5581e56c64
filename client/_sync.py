"""BlockingConnections: connections whose waits block a thread, and the end of a coroutine that waits by them alone."""

import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import httpx

from .messages import Answer

T = TypeVar("T")


def finish(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. Nothing in it may suspend: no event loop would wake it."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        value: T = end.value
        return value
    coroutine.close()
    raise RuntimeError("a blocking call waited for an event loop")


class BlockingConnections:
    """Connections to one server, for threads."""

    time_limit = contextlib.nullcontext  # a blocking read cannot be interrupted: httpx's read timeout alone bounds it

    def __init__(self, transport: httpx.BaseTransport | None, options: Mapping[str, Any]) -> None:
        self.http = httpx.Client(transport=transport, **options)

    async def sleep(self, seconds: float) -> None:
        """Sleep."""
        time.sleep(seconds)  # noqa: ASYNC251  no loop runs

    async def send(self, request: httpx.Request, seconds: float | None) -> Answer:
        """Send a request and read the whole answer. Raises TimeoutError at the first chunk after `seconds`."""
        until = math.inf if seconds is None else time.monotonic() + seconds
        content = bytearray()
        with contextlib.closing(self.http.send(request, stream=True)) as response:
            for chunk in response.iter_bytes():
                content += chunk
                if time.monotonic() > until:
                    raise TimeoutError("the answer trickles")
        return Answer(response.status_code, response.headers, bytes(content))

    async def open(self, request: httpx.Request) -> httpx.Response:
        """Send a request, and read the body only of a refusal."""
        response = self.http.send(request, stream=True)
        if response.status_code != 200:
            response.read()
        return response

    async def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Iterate over a body."""
        for chunk in response.iter_bytes():
            yield chunk

    async def close_body(self, response: httpx.Response, chunks: AsyncIterator[bytes] | None = None) -> None:
        """Close a response; another thread may be inside the iterator of its body, which ends with the response."""
        response.close()

    def close_dropped(self, close: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Close a stream that was dropped."""
        finish(close())

    async def close(self) -> None:
        """Close the connections."""
        self.http.close()
