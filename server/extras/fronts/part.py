"""FrontPart: middleware of a front that asks the engine's process for figures, or hands it the whole request."""

import re
from pathlib import Path
from typing import Any

import httpx
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ....engine.errors import SplitfuseError, UnavailableError
from ...extension import Part, declared
from ...http.disconnect import unless_disconnected
from ...http.errors import describe
from ...http.json_body import DEADLINE_S, read_body
from .engine_process import HTTP_SOCKET
from .front_engine import FrontEngine

# Extensions whose routes need the engine itself, and single paths of others.
_EXTENSIONS = ("weight_updates", "lora", "embeddings")
_PATHS = re.compile(r"/(stats/stream|api/(embed|embeddings|show|tags|ps))")
_FIGURES = re.compile(r"/(stats|metrics|result/([^/]+)/explain)")
# Headers of a connection, and of a body that has been unpacked.
_OWN_HEADERS = {b"connection", b"keep-alive", b"transfer-encoding", b"upgrade", b"content-length", b"content-encoding"}


class FrontPart(Part):
    """State of a front: the connection for HTTP to the engine's process."""

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        self._client: httpx.AsyncClient | None = None
        self._needy = [extension for extension in declared() if extension.name in _EXTENSIONS]

    def middleware(self) -> list[Middleware]:
        return [Middleware(_ToEngine, part=self)]

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    def needs_engine(self, path: str) -> bool:
        """True if the route of this path works beside the engine alone."""
        return _PATHS.fullmatch(path) is not None or any(owner.owns(path) for owner in self._needy)

    async def client(self, engine: FrontEngine) -> httpx.AsyncClient:
        """Return the client of the engine's process, which answers HTTP from now on."""
        await engine.call("http")
        if self._client is None:
            transport = httpx.AsyncHTTPTransport(uds=str(Path(engine.folder, HTTP_SOCKET)))
            self._client = httpx.AsyncClient(transport=transport, base_url="http://engine", timeout=None)
        return self._client


class _ToEngine:
    """ASGI middleware of a front."""

    def __init__(self, app: ASGIApp, part: FrontPart) -> None:
        self._app, self._part = app, part

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        engine: Any = self._part.service.lifecycle.loaded
        if scope["type"] != "http" or engine is None:
            await self._app(scope, receive, send)
        elif self._part.needs_engine(scope["path"]):
            try:
                response = await self._forward(Request(scope, receive), engine)
            except SplitfuseError as exc:
                response = describe(exc).response()
            await response(scope, receive, send)
        else:
            if figures := _FIGURES.fullmatch(scope["path"]):
                await engine.refresh(figures[2])
            await self._app(scope, receive, send)

    async def _forward(self, request: Request, engine: FrontEngine) -> Response:
        most = self._part.service.settings.max_body_bytes
        body = await read_body(request, max_bytes=most, setting="--max-body-bytes", deadline_s=DEADLINE_S)
        client = await self._part.client(engine)
        url = f"{request.url.path}?{request.url.query}"
        headers = [pair for pair in request.headers.raw if pair[0] not in _OWN_HEADERS]
        sent = client.send(client.build_request(request.method, url, content=body, headers=headers), stream=True)
        try:
            answer = await unless_disconnected(request.receive, sent)
        except httpx.TransportError as exc:
            raise UnavailableError("the engine's process has ended; another one starts") from exc
        if request.method != "GET":
            await engine.refresh()
        response = StreamingResponse(answer.aiter_raw(), answer.status_code, background=BackgroundTask(answer.aclose))
        response.raw_headers = [pair for pair in answer.headers.raw if pair[0].lower() not in _OWN_HEADERS]
        return response
