"""Differences of the blocking client: the names of _async.py, for threads."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import httpx

from .messages import Answer

StreamId = str
S = TypeVar("S")

sleep = time.sleep
time_limit = contextlib.nullcontext  # a blocking read cannot be interrupted: httpx's read timeout alone bounds it


class DroppedStreams:
    """Streams that were dropped without `close`."""

    def close(self, close: Callable[[], None]) -> None:
        """Close a stream now."""
        close()

    def wait(self) -> None:
        """Return at once: every dropped stream is closed."""


def begin(stream: S, start: Callable[[], S]) -> S:
    """Return a new stream after submitting its request."""
    return start()


def send(http: httpx.Client, request: httpx.Request, seconds: float | None) -> Answer:
    """Send a request and read the whole answer. Raises TimeoutError at the first chunk after `seconds`."""
    until = math.inf if seconds is None else time.monotonic() + seconds
    content = bytearray()
    with contextlib.closing(http.send(request, stream=True)) as response:
        for chunk in response.iter_bytes():
            content += chunk
            if time.monotonic() > until:
                raise TimeoutError("the answer trickles")
    return Answer(response.status_code, response.headers, bytes(content))


def close_body(response: httpx.Response, chunks: Iterator[bytes]) -> None:
    """Close a response; another thread may be inside the iterator of its body, which ends with the response."""
    response.close()
