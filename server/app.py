"""The ASGI application: routes, what stands before them, and how failures leave. One app serves one engine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from fastapi import APIRouter, FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..engine.errors import SplitfuseError
from .api import docs, operations
from .api.missing_route import missing_route
from .api.native import routes as native
from .api.openapi import openapi_of
from .extras.anthropic import errors as anthropic_errors
from .extras.anthropic import routes as anthropic
from .extras.batches import routes as batches
from .extras.openai import routes as openai
from .extras.page import routes as page
from .extras.page.assets import is_page
from .extras.responses import routes as responses
from .extras.telemetry.request_ends import WatchRequests
from .http.auth import RequireKey
from .http.errors import ErrorForm, HeldElsewhereError, ResultNotFoundError, describe
from .http.every_answer import EveryAnswer
from .http.foreign_pages import RefuseForeignPages
from .jobs.kept_request import KeptKind
from .service import Endpoint, Service
from .settings import Settings
from .version import package_version

_KINDS: dict[str, KeptKind] = {native.KIND: native.KeptGenerate(), responses.KIND: responses.KeptResponse()}
# To the pages of --allowed-origins.
_EXPOSED_HEADERS = ("Location", "Retry-After", "X-Ignored-Fields", "X-Request-Id", "X-Seq-Id", "X-Unenforced")
_RESULTS = ("/result/", "/v1/responses/")
_ENDPOINTS: dict[str, Endpoint] = {
    "/generate": native.generate_batched,
    "/v1/completions": openai.complete_batched,
    "/v1/chat/completions": openai.chat_batched,
    "/v1/responses": responses.respond_batched,
}
_ROUTERS = (
    *(native.router, openai.router, responses.router, anthropic.router),
    *(batches.router, operations.router, docs.router, page.router),
)
_ERROR_FORMS: dict[str, ErrorForm] = {"/v1/messages": anthropic_errors.error_answer}

if TYPE_CHECKING:
    from ..engine.serving.async_engine import AsyncEngine


def build_app(settings: Settings, engine: "AsyncEngine | None" = None) -> FastAPI:
    """The application. Without an engine, or with one not started, it loads it while it already answers /ready."""
    service = Service(settings, engine, kinds=_KINDS, endpoints=_ENDPOINTS)
    app = FastAPI(
        title="splitfuse",
        version=package_version(),
        lifespan=_lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        middleware=_middleware(service),
    )
    app.state.service = service
    app.openapi = lambda: openapi_of(app)  # type: ignore[method-assign]  # FastAPI's own way to say it
    for router in _routers(settings):
        app.include_router(router)
    for exception in (SplitfuseError, HTTPException, RequestValidationError):
        app.add_exception_handler(exception, _answer_failure)
    if service.results.is_shared:
        from .extras.shared.forwarder import Forwarder  # imports httpx, which the others do not need

        app.state.forwarder = Forwarder()
        app.add_exception_handler(HeldElsewhereError, app.state.forwarder.answer)
    return app


def _routers(settings: Settings) -> list[APIRouter]:
    if not settings.ollama_api:
        return list(_ROUTERS)
    from .extras.ollama import routes as ollama

    return [*_ROUTERS, ollama.router]


def _error_forms(settings: Settings) -> dict[str, ErrorForm]:
    """How errors look below these paths, where not as everywhere."""
    if not settings.ollama_api:
        return _ERROR_FORMS
    from .extras.ollama.errors import error_answer

    return {**_ERROR_FORMS, "/api": error_answer}


def _middleware(service: Service) -> list[Middleware]:
    """In the order of the way in. Where there are keys no page can use the server without one: it needs no guard."""
    settings = service.settings
    origins = settings.allowed_origins
    names = {settings.host.lower(), *settings.allowed_hosts}
    guard = Middleware(RefuseForeignPages, hosts=names, origins=origins)
    # Before the key is asked for: browsers send none with a preflight.
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["*"],
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=_EXPOSED_HEADERS,
    )
    key = Middleware(RequireKey, keys=service.keys, is_open=lambda scope: settings.page and is_page(scope))
    slash = Middleware(_IgnoreTrailingSlash)
    watch = Middleware(WatchRequests, ends=service.requests)
    every = Middleware(EveryAnswer, error_forms=_error_forms(settings))
    before = [every, *[guard] * (not service.keys), *[cors] * bool(origins), key, slash]
    return [*before, *[watch] * bool(service.requests.listeners)]


class _IgnoreTrailingSlash:
    """ASGI middleware: a redirect to the path without it would make a GET of a POST, without its body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/"):
            scope = {**scope, "path": scope["path"].rstrip("/") or "/"}
        await self._app(scope, receive, send)


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    service.loading = asyncio.create_task(service.load())
    try:
        yield
    finally:
        service.loading.cancel()
        await asyncio.gather(service.loading, return_exceptions=True)
        await service.close()
        if service.results.is_shared:
            await app.state.forwarder.close()


async def _answer_failure(request: Request, exc: Exception) -> Response:
    if isinstance(exc, HTTPException) and exc.status_code == 405:
        methods = ", ".join(_methods(request))
        exc = HTTPException(405, f"this path takes {methods}, not {request.method[:20]}", headers={"Allow": methods})
    if isinstance(exc, HTTPException) and exc.status_code == 404:
        path = request.url.path
        # A malformed id must look like an unknown one.
        is_result = path.startswith(_RESULTS)
        exc = ResultNotFoundError() if is_result else HTTPException(404, missing_route(path, _paths(request)))
    return describe(exc).response()


def _routes(request: Request) -> list[Route]:
    routers = _routers(request.app.state.service.settings)
    routes = [*request.app.routes, *(route for router in routers for route in router.routes)]
    return [route for route in routes if isinstance(route, Route)]


def _paths(request: Request) -> set[str]:
    """The paths of all routes, those of ids as far as the id."""
    return {route.path.partition("/{")[0] for route in _routes(request)}


def _methods(request: Request) -> list[str]:
    """What this path takes, over all of its routes; the router knows only the first one's."""
    matching = [route for route in _routes(request) if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in matching for method in route.methods or ()})
