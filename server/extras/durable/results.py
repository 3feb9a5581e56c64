"""Where `--results` says that results are kept."""

import importlib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ....engine.errors import ConfigError
from ...jobs.kept_request import KeptKind
from ...jobs.result_store import ResultLimits, ResultStore
from ...settings import Settings
from ..shared.shared_results import SharedResults
from .durable_results import DurableResults
from .sealing import Sealing
from .sqlite_store import SqliteStore

if TYPE_CHECKING:
    from ..shared.postgres_store import PostgresStore


def results_of(settings: Settings, kinds: Mapping[str, KeptKind]) -> ResultStore:
    """In memory, in a file, or in a database. Raises ConfigError if a package is missing, or the key."""
    limits = ResultLimits(
        ttl=settings.result_ttl,
        max_results=settings.max_results,
        max_bytes=settings.max_result_bytes,
        max_unfinished=settings.max_unfinished_per_key,
        max_owner_bytes=settings.max_result_bytes_per_key,
    )
    if settings.results == "memory":
        return ResultStore(limits)
    sealing = None if settings.results_key_file is None else Sealing.read(Path(settings.results_key_file))
    if settings.has_shared_results:
        open_shared, lease_s = _postgres(settings, sealing), settings.results_lease
        return SharedResults(limits, open_store=open_shared, kinds=kinds, lease_s=lease_s, sealing=sealing)
    is_synced = settings.results_sync == "full"
    open_store = partial(SqliteStore, Path(settings.results), is_synced=is_synced, sealing=sealing)
    return DurableResults(limits, open_store=open_store, kinds=kinds, sealing=sealing)


def _postgres(settings: Settings, sealing: Sealing | None) -> "Callable[[], PostgresStore]":
    try:
        module = importlib.import_module("..shared.postgres_store", __package__)
    except ImportError as exc:
        raise ConfigError(f"--results postgresql://… ({exc}): pip install 'psycopg[binary]'") from exc
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return partial(
        module.PostgresStore,
        settings.results,
        url=settings.results_url or f"http://{host}:{settings.port}",
        model=settings.model_name,
        lease_s=settings.results_lease,
        is_synced=settings.results_sync == "full",
        sealing=sealing,
    )
