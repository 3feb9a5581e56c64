"""The ASGI application: routes, middleware, and the answers to failures. One app serves one engine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from ..engine.errors import SplitfuseError
from . import package_version
from .api import docs, operations
from .api.document import openapi_of
from .api.guards import guards
from .api.missing_route import gone_route, missing_route
from .api.native import background
from .api.native import routes as native
from .api.request_model import refusal
from .http.connection_limit import ConnectionLimit
from .http.errors import ResultNotFoundError, describe
from .http.lazy_routes import LazyRoutes
from .http.loop_budget import BYTES_PER_TURN, LEAST_BYTES, LoopBudget, RequestBudget
from .http.response_middleware import ResponseMiddleware
from .metrics import Metrics
from .server_settings import ServerSettings
from .service import Service

if TYPE_CHECKING:
    from ..engine.serving.async_engine import AsyncEngine

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
    """Middleware, outermost first."""
    every = Middleware(
        ResponseMiddleware, error_form_of=service.extensions.error_form_of, on_answer=service.metrics.on_answer
    )
    before = guards(
        service.settings, service.keys, is_open=_is_open(service), inside=[Middleware(RequestBudget), every]
    )
    return [*before, *(middleware for part in service.extensions.parts for middleware in part.middleware())]


def _is_open(service: Service) -> Any:
    """Make the test of scopes that extensions leave open: files without secrets."""
    tests = service.extensions.all("is_open")
    return lambda scope: any(test(service, scope) for test in tests)


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
