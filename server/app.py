"""The ASGI application: routes, middleware, and the answers to failures. One app serves one engine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..engine.errors import SplitfuseError
from . import package_version
from .api import docs, operations
from .api.document import openapi_of
from .api.missing_route import gone_route, missing_route
from .api.native import background
from .api.native import routes as native
from .api.request_model import refusal
from .http.auth import RequireKey
from .http.connection_limit import ConnectionLimit
from .http.errors import ErrorForm, ResultNotFoundError, describe
from .http.foreign_pages import RefuseForeignPages
from .http.lazy_routes import LazyRoutes
from .http.loop_budget import BYTES_PER_TURN, LEAST_BYTES, LoopBudget, RequestBudget
from .http.response_middleware import ResponseMiddleware
from .metrics import Metrics
from .server_settings import ServerSettings
from .service import Service

if TYPE_CHECKING:
    from ..engine.serving.async_engine import AsyncEngine

# Response headers that pages of --allowed-origins may read.
_EXPOSED_HEADERS = (
    *("Location", "Retry-After", "X-Ignored-Fields", "X-In-Words", "X-Max-Tokens", "X-Request-Id", "X-Seq-Id"),
    *("X-Unenforced", "openai-processing-ms", "x-ratelimit-limit-requests", "x-ratelimit-remaining-requests"),
    *("request-id", "anthropic-ratelimit-requests-limit", "anthropic-ratelimit-requests-remaining"),
)
_RESULTS = ("/result/", "/v1/responses/")


def build_app(
    settings: ServerSettings, engine: "AsyncEngine | None" = None, *, stats: Callable[[], dict[str, object]] = dict
) -> FastAPI:
    """Make the application. Without a started engine the application loads one while it already answers /ready.

    `stats`: counters of the process, beside the engine's and the connections'.
    """
    connections = ConnectionLimit(settings.max_connections)

    def all_stats() -> dict[str, object]:
        return (
            {"connections_refused": connections.num_refused}
            | stats()
            | service.results.stats()
            | service.engine_stats()
        )

    service = Service(
        settings,
        engine,
        kinds=lambda service: {background.KIND: background.SavedGenerate(service.read_check)},
        endpoints={"/generate": background.generate_batched},
        metrics=Metrics.of(settings, stats=all_stats),
    )
    app = FastAPI(
        title="splitfuse",
        version=package_version(),
        lifespan=_lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
        middleware=_middleware(service),
    )
    app.state.service, app.state.connections = service, connections
    app.state.body_turns = LoopBudget(BYTES_PER_TURN, least=LEAST_BYTES)
    for router in (native.router, operations.router, docs.router):
        app.include_router(router)
    app.state.lazy_routes = LazyRoutes(app, [extension for extension in service.extensions.used if extension.router])
    app.openapi = lambda: _openapi(app)  # type: ignore[method-assign]  # FastAPI's own way to say it
    for exception in (SplitfuseError, HTTPException, RequestValidationError):
        app.add_exception_handler(exception, _answer_failure)
    for part in service.extensions.parts:
        for kind, handler in part.exception_handlers().items():
            app.add_exception_handler(kind, handler)
    return app


def _openapi(app: FastAPI) -> dict[str, Any]:
    app.state.lazy_routes.load_all()
    root_path = app.state.service.settings.root_path
    return openapi_of(app, _routes(app)) | ({"servers": [{"url": root_path}]} if root_path else {})


def _middleware(service: Service) -> list[Middleware]:
    """Middleware, outermost first. With API keys the guard against foreign pages is not needed: a page has no key."""
    settings = service.settings
    origins = settings.origins
    names = {settings.host.lower(), *settings.hosts}
    is_open = _is_open(service)
    guard = Middleware(RefuseForeignPages, hosts=names, origins=origins, is_open=is_open)
    # Before the key is asked for: browsers send none with a preflight.
    cors = Middleware(
        CORSMiddleware,
        allow_origins=origins,
        allow_methods=["*"],
        allow_headers=["*"],
        allow_private_network=True,
        expose_headers=_EXPOSED_HEADERS,
    )
    key = Middleware(RequireKey, keys=service.keys, is_open=is_open)
    slash = Middleware(_IgnoreTrailingSlash)
    every = Middleware(ResponseMiddleware, error_form_of=_error_form_of(service), on_answer=service.metrics.on_answer)
    root = [Middleware(_RootPath, root_path=settings.root_path)] * bool(settings.root_path)
    before = [
        *root,
        Middleware(RequestBudget),
        every,
        *[guard] * (not service.keys),
        *[cors] * bool(origins),
        key,
        slash,
    ]
    return [*before, *(middleware for part in service.extensions.parts for middleware in part.middleware())]


def _is_open(service: Service) -> Any:
    """Make the test of scopes that extensions leave open: files without secrets."""
    tests = service.extensions.all("is_open")
    return lambda scope: any(test(service, scope) for test in tests)


def _error_form_of(service: Service) -> Any:
    """Make the look-up of the form of errors below a path."""

    def error_form_of(path: str) -> ErrorForm | None:
        owner = service.extensions.owner_of(path)
        return None if owner is None or owner.error_form is None else owner.load(owner.error_form)

    return error_form_of


class _RootPath:
    """ASGI middleware that drops --root-path where a proxy has left it."""

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app, self._root_path = app, root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and f"{scope['path']}/".startswith(f"{self._root_path}/"):
            scope["path"] = scope["path"].removeprefix(self._root_path) or "/"
        await self._app(scope, receive, send)


class _IgnoreTrailingSlash:
    """ASGI middleware that drops a trailing slash: a redirect would turn a POST into a GET and drop its body."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].endswith("/"):
            scope["path"] = scope["path"].rstrip("/") or "/"  # in place: the middleware outside reads the route
        await self._app(scope, receive, send)


@contextlib.asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    service.lifecycle.begin_loading()
    try:
        yield
    finally:
        await service.lifecycle.end()


async def _answer_failure(request: Request, exc: Exception) -> Response:
    if isinstance(exc, RequestValidationError):
        error = exc.errors()[0]
        exc = refusal({**error, "loc": error["loc"][1:]})  # without "query" or "header"
    if isinstance(exc, HTTPException) and exc.status_code in (404, 405):
        await asyncio.to_thread(request.app.state.lazy_routes.load_all)
        exc = _missing(request, exc.status_code)
    return describe(exc).response()


def _missing(request: Request, status: int) -> Exception:
    """Say why there is nothing at this path, or nothing by this method."""
    state, path = request.app.state, request.url.path
    gone = gone_route(path)
    if status == 405 and not (gone and request.method == "POST"):
        methods = ", ".join(_methods(request))
        return HTTPException(405, f"this path takes {methods}, not {request.method[:20]}", headers={"Allow": methods})
    if path.startswith(_RESULTS) and not gone:
        return ResultNotFoundError()  # a malformed id must look like an unknown one
    lack = state.lazy_routes.lack_at(path) or state.service.extensions.lack_at(path)
    return HTTPException(404, f"not served here: {lack}" if lack else gone or missing_route(path, _paths(request)))


def _routes(app: FastAPI) -> list[Route]:
    routers = (native.router, operations.router, docs.router, *app.state.lazy_routes.loaded)
    routes = [*app.routes, *(route for router in routers for route in router.routes)]
    return [route for route in routes if isinstance(route, Route)]


def _paths(request: Request) -> set[str]:
    """Return the paths of all routes, cut off before an id."""
    return {route.path.partition("/{")[0] for route in _routes(request.app)}


def _methods(request: Request) -> list[str]:
    """Return the methods that this path takes, over all of its routes; the router knows only the first one's."""
    matching = [route for route in _routes(request.app) if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in matching for method in route.methods or ()})
