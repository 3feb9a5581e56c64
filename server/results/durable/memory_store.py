"""MemoryStore: files and batches of a server that keeps nothing on disk, in a thread of its own."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

from ...http.errors import NotReadyError
from .sqlite_store import SqliteStore
from .store import Store

T = TypeVar("T")
_SWEEP_S = 5.0


class StoreUser(Protocol):
    """Port to a store that runs functions one after the other in the store's thread."""

    async def use(self, function: Callable[[Store], T]) -> T:
        """Return the function's result on the store. Raises NotReadyError (StoreUnavailableError)."""


class MemoryStore:
    """StoreUser over a store in memory. The store is created at its first use, because most servers see no batch."""

    def __init__(self, *, clock: Callable[[], float]) -> None:
        """`clock` returns wall clock seconds."""
        self._clock = clock
        self._store: SqliteStore | None = None
        self._is_closed = False
        self._swept_at = float("-inf")
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="splitfuse-memory-store")

    async def use(self, function: Callable[[Store], T]) -> T:
        """Like StoreUser.use, but raises NotReadyError only once it is closed."""
        if self._is_closed:
            raise NotReadyError("the server is shutting down", code="draining")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._use, function)

    def close(self) -> None:
        """Drop all contents."""
        if not self._is_closed:
            self._is_closed = True
            self._thread.submit(self._forget)
            self._thread.shutdown(wait=False)

    def _forget(self) -> None:
        if self._store is not None:
            self._store.close()

    def _use(self, function: Callable[[Store], T]) -> T:
        if self._store is None:
            self._store = SqliteStore(None)
        if (now := self._clock()) - self._swept_at > _SWEEP_S:
            self._swept_at = now
            self._store.sweep(now, max_jobs=0)
        return function(self._store)
