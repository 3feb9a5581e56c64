"""Forwarder: answers a request for a job on another server with that server's answer.

The other server gets the caller's key and checks it as usual. A forwarded request is not forwarded again. The head of
an answer, and each piece of a stream, may take as long as the other server holds the job; any other body has a limit of
time and of size.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable
from typing import TypeVar

import httpx
from starlette.requests import Request
from starlette.responses import Response

from ...http.auth import KEY_HEADERS
from ...http.disconnect import unless_disconnected
from ...http.errors import HeldElsewhereError, IsHeld, MovedError, Problem
from ...http.json_body import FIELDS
from ...http.json_response import dumps
from ...http.sse import EventStream

_log = logging.getLogger("splitfuse.results")
FORWARDED = "X-Splitfuse-Forwarded"
_PASSED_ON = ("authorization", *KEY_HEADERS, "last-event-id", "idempotency-key", "prefer", "x-request-id")
_LEFT_OUT = (
    *("cache-control", "connection", "content-length", "date", "server", "transfer-encoding"),
    *("x-accel-buffering", "x-request-id"),
)
_CONNECT_S = 3.0
_CHECK_S = 2.0
_BODY_S = 60.0  # for a whole body that is no stream
_BODY_BYTES = 2**30  # four times the default of --max-result-bytes
T = TypeVar("T")


class Forwarder:
    """Connections to other servers."""

    def __init__(self, *, body_s: float = _BODY_S, body_bytes: int = _BODY_BYTES) -> None:
        """`body_s`, `body_bytes`: the most seconds and bytes of a body that is no stream."""
        self._body_s = body_s
        self._body_bytes = body_bytes
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            await self._client.aclose()

    async def answer(self, request: Request, exc: Exception) -> Response:
        """Return the answer of the job's server. Raises MovedError, ClientDisconnect."""
        assert isinstance(exc, HeldElsewhereError)
        if FORWARDED in request.headers:
            raise MovedError
        try:
            return await unless_disconnected(request.receive, self._answer(request, exc))
        except (httpx.HTTPError, TimeoutError) as error:
            raise MovedError from error

    async def _answer(self, request: Request, exc: HeldElsewhereError) -> Response:
        client = self._connected()
        sending = client.send(_forwarded(client, request, exc.url), stream=True)
        answer = await _while_held(sending, exc.is_held)
        headers = {name: value for name, value in answer.headers.items() if name not in _LEFT_OUT}
        if headers.get("content-type", "").startswith(EventStream.media_type):
            return EventStream(_chunks(answer, exc.is_held), error_frame=_no_frame, headers=headers)
        async with contextlib.aclosing(answer), asyncio.timeout(self._body_s):
            return Response(await _body(answer, max_bytes=self._body_bytes), answer.status_code, headers)

    def _connected(self) -> httpx.AsyncClient:
        if self._client is None:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=20)
            timeout = httpx.Timeout(None, connect=_CONNECT_S)
            self._client = httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=False)
        return self._client


def _forwarded(client: httpx.AsyncClient, request: Request, base_url: str) -> httpx.Request:
    headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
    headers |= {FORWARDED: "1", "Accept-Encoding": "identity"}
    query = request.url.query
    url = f"{base_url.rstrip('/')}{request.scope['raw_path'].decode('ascii')}{'?' if query else ''}{query}"
    fields = request.scope.get(FIELDS)
    content = None if fields is None else dumps(fields)
    return client.build_request(request.method, url, headers=headers, content=content)


async def _while_held(reading: Awaitable[T], is_held: IsHeld) -> T:
    """Await the reading while the other server holds the job.

    A stopped server keeps connections open in silence; only its expired lease shows that it is gone.
    """
    task = asyncio.ensure_future(reading)
    try:
        while not (await asyncio.wait([task], timeout=_CHECK_S))[0]:
            if not await is_held():
                raise MovedError
        return task.result()
    finally:
        task.cancel()


async def _body(answer: httpx.Response, *, max_bytes: int) -> bytes:
    """Read a whole body. Raises MovedError if it has more bytes."""
    body = bytearray()
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > max_bytes:
            _log.error("results: the answer of another server has more than %d bytes", max_bytes)
            raise MovedError
    return bytes(body)


async def _chunks(answer: httpx.Response, is_held: IsHeld) -> AsyncGenerator[bytes, None]:
    """Yield the stream as it arrives. If the other server dies, it stops without an end, so readers reconnect."""
    async with contextlib.aclosing(answer):
        chunks = answer.aiter_raw()
        with contextlib.suppress(httpx.HTTPError, MovedError, StopAsyncIteration):
            while True:
                yield await _while_held(anext(chunks), is_held)


def _no_frame(problem: Problem) -> bytes:
    return b""
