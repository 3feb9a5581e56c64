"""Forward: hands a request to its model's process once it has its turn, and the answer's bytes to the client."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ....engine.errors import InvalidRequestError
from ...http.disconnect import unless_disconnected
from ...http.errors import REQUEST_ID, NotReadyError
from ...http.json_body import DEADLINE_S, read_body
from ...http.json_response import JsonResponse
from ...http.sse import CHUNK_WRITER
from ...server_settings import ServerSettings
from .connections import LOST, Headers
from .destination import Destination, destination_of, fields_of, is_empty, is_figures, keep_alive_of
from .listing import idle_stats, unloaded_answer
from .model_process import ModelProcess
from .router import Router

# Headers of a connection, and headers that the model's server would judge again.
_NOT_PASSED_ON = frozenset(
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect host content-length "
    b"origin sec-fetch-site sec-fetch-mode sec-fetch-dest x-request-id".split()
)
_NOT_GIVEN_BACK = frozenset(b"connection keep-alive transfer-encoding date server".split())
_MOST_LOSSES = 3  # processes that may end under one request: it may be the cause
_END_SEEN_S = 2.0  # from a lost connection to the end of its process


class Forward:
    """ASGI application for all routes that the models' servers have."""

    def __init__(self, router: Router, settings: ServerSettings) -> None:
        self._router = router
        self._settings = settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. Raises SplitfuseError before the answer has begun."""
        request = Request(scope, receive)
        if request.headers.get("content-type", "").startswith("multipart/"):
            await self._upload(request, send)
            return
        body = b""
        if request.method not in ("GET", "HEAD"):
            most = self._settings.max_body_bytes
            body = await read_body(request, max_bytes=most, setting="--max-body-bytes", deadline_s=DEADLINE_S)
        fields = fields_of(body)
        path = scope["path"]
        destination = destination_of(self._router.catalog, request.method, path, request.query_params, fields)
        keep_alive = keep_alive_of(path, fields)
        if keep_alive == 0 and is_empty(path, fields):
            self._router.dismiss(destination.entry.name)
            await JsonResponse(unloaded_answer(destination.entry.name, path))(scope, receive, send)
            return
        if request.query_params.get("autoload") == "false" and self._router.process_of(destination.entry.name) is None:
            raise InvalidRequestError(f"model {destination.entry.name} is not loaded, and autoload is false")
        if keep_alive is not None and keep_alive > 0:
            self._router.keep(destination.entry.name, keep_alive if keep_alive < float("inf") else None)
        exchange = _Exchange(request, send, body)
        await unless_disconnected(receive, self._answer(exchange, destination))
        if keep_alive == 0:
            self._router.dismiss(destination.entry.name)

    async def _answer(self, exchange: "_Exchange", destination: Destination) -> None:
        if destination.needs_turn:
            await self._in_turn(exchange, destination)
        elif (process := self._any_ready(destination)) is not None:
            await _watch(exchange, process)
        elif (path := exchange.request.scope["path"]) == "/stats":
            await exchange.answer(JsonResponse(idle_stats(destination.entry.name)))
        elif not is_figures(path):
            await self._in_turn(exchange, destination)
        else:
            raise NotReadyError("no model is in memory; the next request loads one", code="unloaded")

    def _any_ready(self, destination: Destination) -> ModelProcess | None:
        """Return the process of the model, or of another one."""
        names = (destination.entry.name, *self._router.catalog.entries)
        processes = (self._router.process_of(name) for name in names)
        return next((process for process in processes if process is not None), None)

    async def _in_turn(self, exchange: "_Exchange", destination: Destination) -> None:
        """Relay in the model's turn; again in its next one if the process ends before the answer has begun."""
        name, since = destination.entry.name, self._router.now()
        if destination.needs_key:
            exchange.add_key()
        for num_losses in range(1, _MOST_LOSSES + 1):
            async with self._router.turn(name, num_bytes=len(exchange.body), since=since) as process:
                try:
                    await exchange.relay(process)
                    return
                except LOST as exc:
                    if exchange.has_begun:
                        return  # uvicorn closes the connection: what came is not all
                    if num_losses == _MOST_LOSSES or not destination.may_repeat:
                        text = f"the process of {name} has ended under this request; it starts again"
                        raise NotReadyError(text, code="failing") from exc
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(process.ended.wait(), _END_SEEN_S)

    async def _upload(self, request: Request, send: Send) -> None:
        """Relay a long body as it comes, once the model has its turn."""
        catalog = self._router.catalog
        entry = destination_of(catalog, request.method, request.scope["path"], request.query_params, {}).entry
        async with self._router.turn(entry.name) as process:
            exchange = _Exchange(request, send, b"")
            try:
                await exchange.relay(process, request.stream())
            except LOST as exc:
                if not exchange.has_begun:
                    raise NotReadyError(
                        f"the process of {entry.name} has ended; send it again", code="failing"
                    ) from exc


class _Exchange:
    """One request and its answer."""

    def __init__(self, request: Request, send: Send, body: bytes) -> None:
        self.request = request
        self.body = body
        self.has_begun = False
        self._send = send
        self._more: list[tuple[bytes, bytes]] = []

    def add_key(self) -> None:
        """Make a repetition find the first one's job."""
        if "idempotency-key" not in self.request.headers:
            self._more.append((b"idempotency-key", f"router-{secrets.token_hex(16)}".encode()))

    async def relay(self, process: ModelProcess, content: AsyncIterator[bytes] | None = None) -> None:
        """Send the request, and write the answer as it comes. Raises one of LOST, ClientDisconnect."""
        scope = self.request.scope
        target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
        sent = self.body if content is None else content
        headers = self._headers(is_streamed=content is not None)
        async with process.connections.ask(scope["method"], target, headers, sent) as answer:
            given = [pair for pair in answer.headers if pair[0] not in _NOT_GIVEN_BACK]
            self.has_begun = True
            await self._send({"type": "http.response.start", "status": answer.status, "headers": given})
            write = self._writer_of_events() if answer.has_events else self._write
            async for chunk in answer.chunks():
                await write(chunk)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _write(self, chunk: bytes) -> None:
        await self._send({"type": "http.response.body", "body": chunk, "more_body": True})

    def _writer_of_events(self) -> Callable[[bytes], Awaitable[None]]:
        writer = self.request.scope.get(CHUNK_WRITER)
        return self._write if writer is None else writer.write_chunk

    async def answer(self, response: Response) -> None:
        """Give an answer of ours."""
        await response(self.request.scope, self.request.receive, self._send)

    async def end(self) -> None:
        """End the answer where it is."""
        if self.has_begun:
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    def _headers(self, *, is_streamed: bool) -> Headers:
        request = self.request
        headers = [pair for pair in request.headers.raw if pair[0] not in _NOT_PASSED_ON]
        headers += [(b"host", b"localhost"), (b"x-request-id", request.scope[REQUEST_ID].encode("latin-1"))]
        if not is_streamed:
            length = [(b"content-length", str(len(self.body)).encode())] * (request.method not in ("GET", "HEAD"))
        elif "content-length" in request.headers:
            length = [(b"content-length", request.headers["content-length"].encode())]
        else:
            length = [(b"transfer-encoding", b"chunked")]
        return [*headers, *length, *self._more]


async def _watch(exchange: _Exchange, process: ModelProcess) -> None:
    """Relay figures or files, until the process is to end. They do not keep its model in memory."""
    relaying: asyncio.Task[Any] = asyncio.create_task(exchange.relay(process))
    process.watchers.add(relaying)
    try:
        await asyncio.wait([relaying])
        if relaying.cancelled():
            await exchange.end()
            return
        relaying.result()
    except LOST as exc:
        if not exchange.has_begun:
            raise NotReadyError("the model's process has ended; try again", code="failing") from exc
    finally:
        relaying.cancel()
        process.watchers.discard(relaying)
