"""The ASGI application: routes, what stands before them, and how failures leave. One app serves one engine."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route

from ..engine.errors import SplitfuseError
from .api import docs, operations
from .api.batches import routes as batches
from .api.native import routes as native
from .api.openai import routes as openai
from .api.openapi import openapi_of
from .api.page import routes as page
from .api.responses import routes as responses
from .http.auth import RequireKey, is_never_open
from .http.errors import HeldElsewhereError, ResultNotFoundError, describe
from .http.every_answer import EveryAnswer
from .http.foreign_pages import RefuseForeignPages
from .page.assets import is_page
from .service import Endpoint, Service
from .settings import Settings
from .storage.durable_results import KeptKind
from .version import package_version

_KINDS: dict[str, KeptKind] = {native.KIND: native.KeptGenerate(), responses.KIND: responses.KeptResponse()}
_EXPOSED_HEADERS = ("Location", "Retry-After", "X-Request-Id", "X-Seq-Id")  # to the pages of --allowed-origins
_RESULTS = ("/result/", "/v1/responses/")
_ENDPOINTS: dict[str, Endpoint] = {
    "/generate": native.generate_batched,
    "/v1/completions": openai.complete_batched,
    "/v1/chat/completions": openai.chat_batched,
    "/v1/responses": responses.respond_batched,
}
_ROUTERS = (native.router, openai.router, responses.router, batches.router, operations.router, docs.router, page.router)

if TYPE_CHECKING:
    from ..engine.async_engine import AsyncEngine


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
    for router in _ROUTERS:
        app.include_router(router)
    for exception in (SplitfuseError, HTTPException, RequestValidationError):
        app.add_exception_handler(exception, _answer_failure)
    if service.results.is_shared:
        from .http.forwarder import Forwarder  # imports httpx, which the others do not need

        app.state.forwarder = Forwarder()
        app.add_exception_handler(HeldElsewhereError, app.state.forwarder.answer)
    return app


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
    key = Middleware(RequireKey, keys=service.keys, is_open=is_page if settings.page else is_never_open)
    return [Middleware(EveryAnswer), *[guard] * (not service.keys), *[cors] * bool(origins), key]


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
        exc = HTTPException(405, headers={"Allow": ", ".join(_methods(request))})
    if isinstance(exc, HTTPException) and exc.status_code == 404 and request.url.path.startswith(_RESULTS):
        exc = ResultNotFoundError()  # a malformed id must look like an unknown one
    return describe(exc).response()


def _methods(request: Request) -> list[str]:
    """What this path takes, over all of its routes; the router knows only the first one's."""
    routes = [*request.app.routes, *(route for router in _ROUTERS for route in router.routes)]
    paths = [route for route in routes if isinstance(route, Route)]
    matching = [route for route in paths if route.matches(request.scope)[0] is not Match.NONE]
    return sorted({method for route in matching for method in route.methods or ()})
