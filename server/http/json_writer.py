"""JsonWriter: serialises large JSON in slices, one per turn of the event loop, and shares a body among its readers.

Serialised for each reader anew, 60 polls of a result of 10 MB held the loop for seconds and took 600 MB.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from weakref import WeakValueDictionary

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .disconnect import unless_disconnected
from .json_response import SLICE_BYTES, json_slices


class SharedBody(list[bytes]):
    """Slices of one body, none until they are serialised. The body is freed with the last response that holds it."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = asyncio.Lock()


class JsonWriter:
    """Serialiser of JSON for all connections of a server."""

    def __init__(self, *, max_shared_bytes: int) -> None:
        self._max_shared_bytes = max_shared_bytes
        self._shared: WeakValueDictionary[str, SharedBody] = WeakValueDictionary()
        self._turn = asyncio.Lock()

    @property
    def num_shared_bytes(self) -> int:
        """Memory of the bodies that are being sent."""
        return sum(len(slice) for body in self._shared.values() for slice in body)

    @property
    def may_share(self) -> bool:
        """True if memory is left to share another body."""
        return self.num_shared_bytes < self._max_shared_bytes

    async def write(self, value: object) -> Sequence[bytes]:
        """Serialise a value in slices, at least one."""
        return [slice async for slice in self.slices(value)]

    async def write_once(self, key: str, write: Callable[[], Awaitable[Sequence[bytes]]]) -> SharedBody:
        """Return the shared body with this key. The first caller runs `write`; concurrent callers wait for it.

        `write` must return the same bytes every time.
        """
        body = self._shared.setdefault(key, SharedBody())
        async with body.lock:
            if not body:
                body += await write()
        return body

    async def slices(self, value: object) -> AsyncGenerator[bytes, None]:
        """Yield the slices of a value, each serialised on demand."""
        rest = json_slices(value)
        while slice := await self._next(rest):
            yield slice

    async def _next(self, rest: Iterator[bytes]) -> bytes:
        async with self._turn:
            slice = next(rest, b"")
            if len(slice) >= SLICE_BYTES:
                await asyncio.sleep(0)
        return slice


class SlicedResponse(Response):
    """A JSON answer in slices, each sent when the connection has space for it. Chunked without `num_bytes`."""

    media_type = "application/json"

    def __init__(self, slices: AsyncGenerator[bytes, None], *, num_bytes: int | None = None) -> None:
        super().__init__()
        self._slices = slices
        self._num_bytes = num_bytes

    @classmethod
    def of(cls, body: Sequence[bytes]) -> "SlicedResponse":
        """Answer with a serialised body, which is held until it is sent."""
        return cls(_slices_of(body), num_bytes=sum(map(len, body)))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the answer. Raises ClientDisconnect."""
        async with contextlib.aclosing(self._slices):
            first = await anext(self._slices)
            if len(first) < SLICE_BYTES:  # the only slice
                await self._begin(send, num_bytes=len(first))
                await send({"type": "http.response.body", "body": first, "more_body": False})
            else:
                await unless_disconnected(receive, self._write(send, first))

    async def _begin(self, send: Send, *, num_bytes: int | None) -> None:
        self.headers["content-length"] = str(num_bytes)
        if num_bytes is None:
            del self.headers["content-length"]
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})

    async def _write(self, send: Send, first: bytes) -> None:
        await self._begin(send, num_bytes=self._num_bytes)
        await send({"type": "http.response.body", "body": first, "more_body": True})
        async for slice in self._slices:
            await send({"type": "http.response.body", "body": slice, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _slices_of(body: Sequence[bytes]) -> AsyncGenerator[bytes, None]:
    for slice in body:
        yield slice
