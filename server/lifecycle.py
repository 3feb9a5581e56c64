"""EngineLifecycle: loads the engine, says whether it takes work, drains it and stops it.

Imports no torch: the engine's module is imported in a thread by `load`, while the port already answers.
"""

import asyncio
import importlib
import logging
from typing import TYPE_CHECKING, Any

from ..engine.errors import ConfigError
from .extension import Extensions
from .http.errors import NotReadyError
from .jobs.result_store import ResultStore

if TYPE_CHECKING:
    from ..engine.serving.async_engine import AsyncEngine
    from .server_settings import ServerSettings

logger = logging.getLogger(__name__)
LINGER_S = 3.0  # a poller's Retry-After is 1 s

_WHY = {
    "loading": "the model is still loading",
    "draining": "the server is shutting down",
    "failed": "the model could not be loaded; the server's log says why",
    "stalled": "the engine makes no progress; the server's log may say why",
}


class EngineLifecycle:
    """The engine of one server, its results and its extensions, from start to end."""

    def __init__(
        self,
        settings: "ServerSettings",
        engine: "AsyncEngine | None",
        *,
        results: ResultStore,
        extensions: Extensions,
        observer: Any,
    ) -> None:
        """`engine`: one that is not ours to make. `observer`: an EngineObserver."""
        self.is_draining = False
        self.logs_load_failure = True  # False where a caller awaits `loading`
        self.loading: asyncio.Task[None] | None = None
        self._settings = settings
        self._engine = engine
        self._results = results
        self._extensions = extensions
        self._observer = observer
        self._is_loaded = False
        self._is_ours = False

    @property
    def state(self) -> str:
        """One of loading, ready, draining, stalled (the engine, or its end) or failed (to load)."""
        if self.is_draining:
            return "draining"
        if self.loading is not None and self.loading.done() and not self._is_loaded:
            return "failed"
        if self.loaded is None:
            return "loading"
        return "ready" if self.loaded.is_ready else "stalled"

    @property
    def engine(self) -> "AsyncEngine":
        """The engine, also while it drains. Raises NotReadyError before it is loaded."""
        if self.loaded is None:
            raise self.not_ready()
        return self.loaded

    @property
    def loaded(self) -> "AsyncEngine | None":
        """The engine, None before it is loaded."""
        return self._engine if self._is_loaded else None

    def not_ready(self) -> NotReadyError:
        """Make the error of a server that takes no work."""
        why = _WHY[self.state]
        if self.state == "loading":
            builds = importlib.import_module("..engine.execution.build_announcement", __package__)
            if progress := builds.build_progress():
                why += f"; building the CPU library: {progress}"
        return NotReadyError(why, code=self.state)

    def begin_loading(self) -> None:
        """Load in a task."""
        self.loading = asyncio.create_task(self._load_or_log())

    async def drain(self) -> None:
        """Take no new work; return when running work has ended, by itself or because the drain timeout is over."""
        self.is_draining = True
        for part in self._extensions.parts:
            await part.drain()
        if self.loaded is not None:
            running = self._results.unfinished()
            await self.loaded.drain(self._settings.drain_timeout)
            await self.close()
            # A poller gets a moment to fetch a result that has just been finished.
            unread = [asyncio.ensure_future(job.was_read.wait()) for job in running if job.status == "completed"]
            if unread:
                await asyncio.wait(unread, timeout=min(LINGER_S, self._settings.drain_timeout))

    async def close(self) -> None:
        """Stop the engine if it is ours; unfinished work is left to the next process."""
        has_crashed = self._engine is not None and self._engine.has_died
        for part in self._extensions.parts:
            await part.stop(has_crashed=has_crashed)
        await self._results.close(has_crashed=has_crashed)
        if self._is_ours and self._is_loaded and self._engine is not None:
            self._is_ours = False
            await self._engine.stop()

    async def end(self) -> None:
        """Stop everything: the app ends."""
        if self.loading is not None:
            self.loading.cancel()
            await asyncio.gather(self.loading, return_exceptions=True)
        await self.close()
        for part in self._extensions.parts:
            await part.close()

    async def _load_or_log(self) -> None:
        try:
            await self._load()
        except Exception as exc:
            if self.logs_load_failure:
                # A reason that the user can fix is one line, anything else a traceback.
                reason = None if isinstance(exc, ConfigError) else exc
                logger.error("the model was not loaded: %s", exc, exc_info=reason)
            raise

    async def _new_engine(self) -> "AsyncEngine":
        if (engine := self._extensions.first("engine")) is not None:
            return engine(self._settings)  # type: ignore[no-any-return]
        module = await asyncio.to_thread(importlib.import_module, "..engine.serving.async_engine", __package__)
        return module.AsyncEngine(self._settings.engine_config())  # type: ignore[no-any-return]

    async def _load(self) -> None:
        """Import and start the engine, unless one was given that runs already. Raises ConfigError."""
        await self._results.open()
        for part in self._extensions.parts:
            await part.open()
        if self._engine is None:
            self._engine = await self._new_engine()
        assert self._engine is not None
        self._engine.observe(self._observer)
        if not self._engine.is_ready:
            self._is_ours = True
            await self._engine.start()
        for part in self._extensions.parts:
            await part.resume(self._engine)
        self._is_loaded = True
        for part in self._extensions.parts:
            await part.start()
