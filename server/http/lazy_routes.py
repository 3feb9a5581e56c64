"""LazyRoutes: routers that are imported with the first request below their paths.

The import runs in a thread; it takes 5 to 20 ms, and the first of a conversation 0.1 s. A router that cannot be
imported is left out, aloud: the others answer.
"""

import asyncio
import logging
import threading
from collections.abc import Iterable
from typing import Protocol

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from ...engine.errors import UnavailableError

logger = logging.getLogger(__name__)


class LazyRouter(Protocol):
    """Router that is not imported yet."""

    @property
    def folder(self) -> str:
        """Folder of its code."""

    def owns(self, path: str) -> bool:
        """Return true if its routes may match this path."""

    def load_router(self) -> APIRouter:
        """Import it."""


class LazyRoutes(BaseRoute):
    """Last route of an app: it matches paths of routers that the app does not have yet."""

    def __init__(self, app: FastAPI, routers: Iterable[LazyRouter]) -> None:
        self.loaded: list[APIRouter] = []
        self._app = app
        self._waiting = list(routers)
        self.broken: list[LazyRouter] = []
        self._lock = threading.Lock()
        app.router.routes.append(self)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a path that belongs to a router which is not loaded."""
        is_ours = scope["type"] == "http" and any(router.owns(scope["path"]) for router in self._waiting)
        return (Match.FULL, {}) if is_ours else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Load the router, and route the request again."""
        routers = [router for router in self._waiting if router.owns(scope["path"])]
        await asyncio.to_thread(self._load, routers)
        await self._app.router(scope, receive, send)

    def load_all(self) -> None:
        """Load every router that can be imported."""
        self._load(list(self._waiting))

    def lack_at(self, path: str) -> str | None:
        """Say which folder of this path's routes cannot be imported; None if there is no such folder."""
        broken = (router.folder for router in self.broken if router.owns(path))
        return next((f"{folder} cannot be loaded; the log says why" for folder in broken), None)

    def _load(self, routers: list[LazyRouter]) -> None:
        with self._lock:
            for router in [router for router in routers if router in self._waiting]:
                try:
                    loaded = router.load_router()
                except UnavailableError:  # it can be imported later
                    raise
                except Exception:
                    logger.exception("%s is not served: it cannot be loaded", router.folder)
                    self.broken.append(router)
                else:
                    self._app.include_router(loaded)
                    self.loaded.append(loaded)
                self._waiting.remove(router)
