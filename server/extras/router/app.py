"""Application of the router: its own routes, which need no model in memory, before the forwarding of all others."""

import time
from types import SimpleNamespace
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Scope

from ....engine.errors import InvalidRequestError
from ... import package_version
from ...api.guards import guards
from ...extension import Extensions
from ...http.auth import CALLER, KeyRing
from ...http.connection_limit import ConnectionLimit
from ...http.errors import NotReadyError, PermissionDeniedError, describe
from ...http.json_body import read_json
from ...http.json_response import JsonResponse
from ...http.loop_budget import BYTES_PER_TURN, LEAST_BYTES, LoopBudget
from ...http.response_middleware import ResponseMiddleware
from ...server_settings import ServerSettings
from .forward import Forward
from .listing import anthropic_entry, ollama_entry, openai_entries, running_entry
from .router import Router
from .turns import READY, UNLOADED, UNLOADING


def build_app(router: Router, settings: ServerSettings) -> Starlette:
    """Make the application."""
    extensions, keys = Extensions(settings), KeyRing(settings.keys, settings.admin_keys)
    open_tests, shell = extensions.all("is_open"), SimpleNamespace(settings=settings)  # no Service is here

    def is_open(scope: Scope) -> bool:
        return any(test(shell, scope) for test in open_tests)

    own = _Routes(router, settings, has_keys=bool(keys))
    every = [Middleware(ResponseMiddleware, error_form_of=extensions.error_form_of)]
    before = guards(settings, keys, is_open=is_open, inside=every)
    app = Starlette(routes=own.routes(Forward(router, settings)), middleware=before)
    app.router.redirect_slashes = False
    app.state.connections = ConnectionLimit(settings.max_connections)
    app.state.body_turns = LoopBudget(BYTES_PER_TURN, least=LEAST_BYTES)
    return app


class _Routes:
    """The router's own routes."""

    def __init__(self, router: Router, settings: ServerSettings, *, has_keys: bool) -> None:
        self._router = router
        self._settings = settings
        self._has_keys = has_keys
        self._started = time.time()

    def routes(self, forward: Forward) -> list[Route]:
        """Return the routes; the last one takes the rest."""
        own = [
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/version", self._version),
            Route("/v1/models", self._models),
            Route("/v1/models/{name:path}", self._model),
            Route("/models", self._models),
            Route("/models/load", self._steer, methods=["POST"]),
            Route("/models/unload", self._steer, methods=["POST"]),
            Route("/sleep", self._steer, methods=["POST"]),
            Route("/wake_up", self._steer, methods=["POST"]),
            Route("/is_sleeping", self._is_sleeping),
            Route("/metrics", self._metrics),
        ]
        if getattr(self._settings, "ollama_api", False):
            own += [Route("/api/tags", self._tags), Route("/api/ps", self._ps)]
            changes = {"create": "POST", "copy": "POST", "push": "POST", "delete": "DELETE"}
            own += [Route(f"/api/{verb}", self._refuse, methods=[method]) for verb, method in changes.items()]
        return [*own, Route("/{path:path}", forward)]

    async def _health(self, request: Request) -> Response:
        return JsonResponse({"status": "ok"})

    async def _ready(self, request: Request) -> Response:
        if self._router.is_draining:
            return describe(NotReadyError("the server is shutting down", code="draining")).response()
        return JsonResponse({"status": "ready"})

    async def _version(self, request: Request) -> Response:
        return JsonResponse({"version": package_version()})

    async def _models(self, request: Request) -> Response:
        entries = self._entries()
        if "anthropic-version" in request.headers:
            data = [anthropic_entry(entry) for entry in entries]
            return JsonResponse({"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]})
        return JsonResponse({"object": "list", "data": entries})

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        served = self._router.catalog.named(name).name
        entry = next((entry for entry in self._entries() if entry["id"] == name), None)
        entry = entry or next(entry for entry in self._entries() if entry["id"] == served)
        return JsonResponse(anthropic_entry(entry) if "anthropic-version" in request.headers else entry)

    async def _tags(self, request: Request) -> Response:
        entries = [ollama_entry(entry, started=self._started) for entry in self._router.catalog]
        return JsonResponse({"models": entries})

    async def _ps(self, request: Request) -> Response:
        turns, now = self._router.turns.models, self._router.now()
        ready = [entry for entry in self._router.catalog if turns[entry.name].state == READY]
        entries = [running_entry(entry, turns[entry.name], started=self._started, now=now) for entry in ready]
        return JsonResponse({"models": entries})

    async def _refuse(self, request: Request) -> Response:
        """Refuse Ollama's changes of the list of models. Raises InvalidRequestError."""
        verb = request.url.path.rpartition("/")[2]
        way_out = "start it with others, or give one a name and settings by --model-settings"
        raise InvalidRequestError(f"{verb} is not supported: this server has the models of its start; {way_out}")

    async def _steer(self, request: Request) -> Response:
        """Load or unload a model, for an admin. Raises PermissionDeniedError, ModelNotFoundError."""
        is_admin = request.scope[CALLER].is_admin
        if not is_admin or not (self._has_keys or self._settings.admin_keys or self._settings.is_local):
            raise PermissionDeniedError
        path = request.url.path
        if path.startswith("/models/"):
            fields = await read_json(request, max_bytes=self._settings.max_body_bytes)
            name = self._router.catalog.named(str(fields.get("model", ""))).name
        else:
            name = self._name_in_query(request)
        (self._router.want if path in ("/models/load", "/wake_up") else self._router.dismiss)(name)
        return JsonResponse({"success": True, "model": name, "state": self._router.turns.models[name].state})

    async def _is_sleeping(self, request: Request) -> Response:
        state = self._router.turns.models[self._name_in_query(request)].state
        return JsonResponse({"is_sleeping": state in (UNLOADED, UNLOADING)})

    def _name_in_query(self, request: Request) -> str:
        """Return the model that a request without a body is for. Raises ModelNotFoundError."""
        catalog, name = self._router.catalog, request.query_params.get("model")
        return (catalog.default if name is None else catalog.named(name)).name

    async def _metrics(self, request: Request) -> Response:
        if not request.scope[CALLER].may_read_sums:
            raise PermissionDeniedError
        from .metrics import page  # here: a server whose metrics nobody reads needs no library for them

        return await page(self._router, prefix=self._settings.metrics_prefix)

    def _entries(self) -> list[dict[str, Any]]:
        turns, fault_of = self._router.turns.models, self._router.fault_of
        return [
            described
            for entry in self._router.catalog
            for described in openai_entries(entry, turns[entry.name], fault=fault_of(entry.name), created=self._started)
        ]
