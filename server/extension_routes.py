"""ExtensionRoutes: routes of extensions, imported with the first request below their paths.

The import runs in a thread; it takes 5 to 20 ms, and the first of a conversation 0.1 s.
"""

import asyncio
import threading

from fastapi import APIRouter, FastAPI
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from .extension import Extension, Extensions


class ExtensionRoutes(BaseRoute):
    """Last route of an app: it matches paths of extensions whose router the app does not have yet."""

    def __init__(self, app: FastAPI, extensions: Extensions) -> None:
        self.loaded: list[APIRouter] = []
        self._app = app
        self._waiting = [extension for extension in extensions.used if extension.router is not None]
        self._lock = threading.Lock()
        app.router.routes.append(self)

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        """Match a path that belongs to an extension which is not loaded."""
        is_ours = scope["type"] == "http" and any(extension.owns(scope["path"]) for extension in self._waiting)
        return (Match.FULL, {}) if is_ours else (Match.NONE, {})

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Load the extension, and route the request again."""
        extensions = [extension for extension in self._waiting if extension.owns(scope["path"])]
        await asyncio.to_thread(self._load, extensions)
        await self._app.router(scope, receive, send)

    def load_all(self) -> None:
        """Load every extension's routes."""
        self._load(list(self._waiting))

    def _load(self, extensions: list[Extension]) -> None:
        with self._lock:
            for extension in extensions:
                if extension in self._waiting and extension.router is not None:
                    router = extension.load(extension.router)
                    self._app.include_router(router)
                    self.loaded.append(router)
                    self._waiting.remove(extension)
