"""DurablePart: results in a file, and webhooks that tell of their ends."""

import asyncio
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...extension import Part
from ...jobs.job_index import JobIndex
from ...jobs.result_backend import ResultBackend
from .durable_backend import DurableBackend
from .resumption import Resumption
from .settings import DurableSettings
from .sqlite_store import SqliteStore
from .stored_jobs import StoredJobs

if TYPE_CHECKING:
    from ....engine.serving.async_engine import AsyncEngine


class DurablePart(Part):
    """Part with the backend of `--results FILE`."""

    backend: DurableBackend
    _webhooks: asyncio.Task[None] | None = None

    def result_backend(self, index: JobIndex) -> ResultBackend:
        """Make the backend. Raises ConfigError if a package is missing."""
        settings: DurableSettings = self.service.settings.section(DurableSettings)
        stored = StoredJobs(self.service.kept_kinds, ttl=index.limits.ttl)
        self.backend = self.new_backend(index, stored, settings)
        return self.backend

    def new_backend(self, index: JobIndex, stored: StoredJobs, settings: DurableSettings) -> DurableBackend:
        """Make the backend of these settings."""
        is_synced = settings.results_sync == "full"
        open_store = partial(SqliteStore, Path(settings.results), is_synced=is_synced)
        backend = DurableBackend(index, stored, open_store=open_store)
        backend.file = Path(settings.results)
        return backend

    async def open(self) -> None:
        """Begin to send webhooks, if there are targets."""
        targets = self.service.settings.webhooks
        if targets.urls:
            from .webhooks import Webhooks  # imports httpx, which the others do not need

            webhooks = Webhooks(targets, self.backend.use, clock=time.time)
            self._webhooks = asyncio.create_task(webhooks.run())

    async def resume(self, engine: "AsyncEngine") -> None:
        """Submit the jobs that an earlier process left. Raises StoreUnavailableError."""
        await self.resumption(engine).run()

    def resumption(self, engine: "AsyncEngine") -> Resumption:
        """Make the way of unfinished jobs into the engine."""
        service = self.service
        return Resumption(self.backend, engine, service.kept_kinds, service.settings, receipts=service.receipts)

    async def stop(self, *, has_crashed: bool = False) -> None:
        """Send no more webhooks."""
        if self._webhooks is not None:
            self._webhooks.cancel()
