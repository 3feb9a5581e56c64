"""PoolingModel: hands requests for embeddings, rerank and scores on to the second model's process."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import httpx
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ....engine.errors import InvalidRequestError, SplitfuseError
from ...extension import Part
from ...http.auth import KEY_HEADERS
from ...http.disconnect import unless_disconnected
from ...http.errors import NotReadyError, describe
from ...http.json_body import DEADLINE_S, read_body
from ...service import Service, service_of
from . import PoolingModelSettings
from .pooling_server import PoolingServer

_PATHS = frozenset(
    f"{version}/{route}"
    for version in ("", "/v1", "/v2")
    for route in ("embeddings", "rerank", "score", "classify", "pooling")
) | {"/api/embed", "/api/embeddings"}
_PASSED_ON = ("authorization", *KEY_HEADERS, "content-type", "x-request-id")
_GIVEN_BACK = ("content-type", "retry-after", "www-authenticate")


class PoolingModel(Part):
    """Part of `--embedding-model`."""

    def __init__(self, service: Service) -> None:
        super().__init__(service)
        settings = service.settings.section(PoolingModelSettings)
        self.server = PoolingServer(settings)
        self._finishing: asyncio.Task[None] | None = None

    def middleware(self) -> Sequence[Middleware]:
        """Answer requests for the second model before the first model's routes do."""
        return [Middleware(_HandedOn)]

    def models(self) -> Sequence[Mapping[str, Any]]:
        """Like Part."""
        return self.server.models

    async def open(self) -> None:
        """Begin to load the second model while the first one loads."""
        self.server.begin()

    async def start(self) -> None:
        """Wait until the second model answers. Raises ConfigError if it cannot be loaded."""
        await self.server.is_up()

    async def drain(self) -> None:
        """Give requests the time that the first model's have, meanwhile."""
        self._finishing = asyncio.create_task(self.server.finish(self.service.settings.drain_timeout))

    async def stop(self, *, has_crashed: bool = False) -> None:
        """Wait for the requests, if the server drains."""
        if self._finishing is not None:
            await self._finishing

    async def close(self) -> None:
        """End the process."""
        await self.server.stop()

    async def answer(self, path: str, body: bytes, headers: Mapping[str, str]) -> httpx.Response:
        """Return the second model's answer. Raises NotReadyError."""
        if self.service.state not in ("ready", "stalled"):  # a stalled engine is the first model's
            raise self.service.lifecycle.not_ready()
        return await self.server.post(path, body, headers)


class _HandedOn:
    """ASGI middleware."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Hand on POSTs to the routes of models that pool."""
        if scope["type"] != "http" or scope["method"] != "POST" or scope["path"] not in _PATHS:
            await self._app(scope, receive, send)
            return
        try:
            answer = await _answer(Request(scope, receive))
        except SplitfuseError as exc:
            answer = describe(exc).response()
        await answer(scope, receive, send)


async def _answer(request: Request) -> Response:
    service = service_of(request)
    part: PoolingModel = service.extensions.part(PoolingModel, service)
    limit = service.settings.max_body_bytes
    body = await read_body(request, max_bytes=limit, setting="--max-body-bytes", deadline_s=DEADLINE_S)
    headers = {name: request.headers[name] for name in _PASSED_ON if name in request.headers}
    answer = await unless_disconnected(request.receive, part.answer(request.url.path, body, headers))
    given = {name: answer.headers[name] for name in _GIVEN_BACK if name in answer.headers}
    return Response(answer.content, answer.status_code, given)


async def embed_batched(
    service: Service, fields: Mapping[str, Any], *, owner: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer like POST /v1/embeddings, in the background. Raises InvalidRequestError, NotReadyError."""
    part: PoolingModel = service.extensions.part(PoolingModel, service)
    answer = await part.answer("/v1/embeddings", json.dumps(dict(fields)).encode(), {})
    result: dict[str, Any] = answer.json()
    if answer.status_code in (429, 503):  # the line is tried again
        raise NotReadyError(result["error"]["message"], code="failing")
    if answer.status_code != 200:
        raise InvalidRequestError(result["error"]["message"])
    return result
