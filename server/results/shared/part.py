"""SharedPart: results in PostgreSQL, and the way to the server that runs a job."""

import importlib
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ....engine.errors import ConfigError
from ...http.errors import HeldElsewhereError
from ...jobs.job_index import JobIndex
from ..durable.durable_backend import DurableBackend
from ..durable.part import DurablePart
from ..durable.settings import DurableSettings
from ..durable.stored_jobs import StoredJobs
from . import SharedSettings
from .forwarder import Forwarder
from .shared_backend import SharedBackend

if TYPE_CHECKING:
    from ....engine.serving.async_engine import AsyncEngine


class SharedPart(DurablePart):
    """Part with the backend of `--results postgresql://…`."""

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        self._forwarder = Forwarder()

    def new_backend(self, index: JobIndex, stored: StoredJobs, settings: DurableSettings) -> DurableBackend:
        """Make the backend of these settings. Raises ConfigError if the driver is missing."""
        shared = settings.section(SharedSettings)
        try:
            module = importlib.import_module(".postgres_store", __package__)
        except ImportError as exc:
            raise ConfigError(f"--results postgresql://… ({exc}): pip install 'psycopg[binary]'") from exc
        host = f"[{shared.host}]" if ":" in shared.host else shared.host
        open_store = partial(
            module.PostgresStore,
            settings.results,
            url=shared.results_url or f"http://{host}:{shared.port}",
            model=shared.model_name,
            lease_s=shared.results_lease,
            is_synced=settings.results_sync == "full",
        )
        return SharedBackend(index, stored, open_store=open_store, lease_s=shared.results_lease)

    def exception_handlers(self) -> Mapping[type[Exception], Any]:
        """Answer for jobs that run elsewhere by asking there."""
        return {HeldElsewhereError: self._forwarder.answer}

    async def resume(self, engine: "AsyncEngine") -> None:
        """From now on go on with the jobs that dead servers left."""
        assert isinstance(self.backend, SharedBackend)
        self.backend.begin_claiming(self.resumption(engine), engine)

    async def close(self) -> None:
        """Close the connections to other servers."""
        await self._forwarder.close()
