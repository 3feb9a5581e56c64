"""SharedKeyLocks: one request at a time for each owner's key, across all servers of a database."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING

from ...http.errors import StoreUnavailableError
from ...jobs.idempotency import IdempotencyKey, KeyLocks

if TYPE_CHECKING:
    from .postgres_store import PostgresStore

_RETRY_S = 0.05
_NUM_RETRIES = 200


class SharedKeyLocks(KeyLocks):
    """Key locks in the database.

    Without them, two servers that receive equal keys at once would both accept a job. The later commit would then fail
    for all jobs in it.
    """

    def __init__(self, call: "Callable[[Callable[[PostgresStore], object]], Awaitable[object]]") -> None:
        """`call` runs a function with the store."""
        super().__init__()
        self._call = call

    @contextlib.asynccontextmanager
    async def hold(self, owner: str, key: IdempotencyKey) -> AsyncIterator[None]:
        """Like KeyLocks.hold, but raises StoreUnavailableError."""
        digest = hashlib.sha256(owner.encode() + key.digest).digest()
        number = int.from_bytes(digest[:8], "big", signed=True)
        async with super().hold(owner, key):
            await self._lock(number)
            try:
                yield
            finally:
                with contextlib.suppress(StoreUnavailableError):  # the end of the session gives the lock back
                    await self._call(lambda store: store.unlock(number))

    async def _lock(self, number: int) -> None:
        for _ in range(_NUM_RETRIES):
            if await self._call(lambda store: store.try_lock(number)):
                return
            await asyncio.sleep(_RETRY_S)
        raise StoreUnavailableError("another server is busy with a request that has this Idempotency-Key or file")
