"""DurablePart: results in a file."""

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

    async def resume(self, engine: "AsyncEngine") -> None:
        """Submit the jobs that an earlier process left. Raises StoreUnavailableError."""
        await self.resumption(engine).run()

    def resumption(self, engine: "AsyncEngine") -> Resumption:
        """Make the way of unfinished jobs into the engine."""
        service = self.service
        return Resumption(self.backend, engine, service.kept_kinds, service.settings, receipts=service.receipts)
