"""SharedBatches: batches in a database that several servers use at once.

The server that runs a batch holds it. A server that no longer holds a batch ends its run, whose writes match no row by
then, and claims the batches that nobody holds. Any server can read the rest of a batch's state.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ....engine.errors import SplitfuseError
from ...http.errors import HeldElsewhereError, MovedError, NotReadyError
from ..batches import BatchSettings
from ..batches.batch import Batch
from ..batches.batch_run import Answer
from ..batches.batches import Batches
from ..durable.batch_rows import BatchChanges, BatchRow
from ..durable.checksum import DamagedError
from ..durable.durable_backend import DurableBackend
from . import SharedSettings
from .shared_backend import BEATS_PER_LEASE, MAX_CLAIMED, SharedKeyLocks

if TYPE_CHECKING:
    from .postgres_store import Holder, PostgresStore

_log = logging.getLogger("splitfuse.batches")


class SharedBatches(Batches):
    """Batches of all servers on a database. This server claims batches while `may_claim` returns True."""

    def __init__(
        self,
        backend: DurableBackend,
        settings: BatchSettings,
        answer: Answer,
        *,
        clock: Callable[[], float],
        may_claim: Callable[[], bool],
    ) -> None:
        super().__init__(backend, settings, answer, clock=clock)
        self._backend = backend
        self._may_claim = may_claim
        self._key_locks = SharedKeyLocks(self._call)
        self._interval_s = settings.section(SharedSettings).results_lease / BEATS_PER_LEASE
        self._looking: asyncio.Task[None] | None = None
        self._strays: set[str] = set()  # held here without a run

    async def resume(self) -> None:
        """Start claiming the batches that other servers left."""
        self._looking = asyncio.create_task(self._look())

    async def drain(self) -> None:
        """Let other servers go on at once."""
        await self.stop()

    async def stop(self, *, has_crashed: bool = False) -> None:
        """Like Batches.stop, but other servers continue the batches at once, after a crash once its end is noted."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await super().stop(has_crashed=has_crashed)
        if not has_crashed:  # otherwise their lines would count no crash
            with contextlib.suppress(NotReadyError):
                await self._call(lambda store: store.release_batches())

    async def _call(self, function: "Callable[[PostgresStore], Any]") -> Any:
        return await self._backend.use(function)

    async def _look(self) -> None:
        while True:
            try:
                await self._look_once()
            except SplitfuseError as exc:  # the database is unavailable
                _log.info("batches: none can be claimed: %s", exc)
            except Exception:
                _log.exception("batches: none of other servers can be taken over")
            await asyncio.sleep(self._interval_s)

    async def _look_once(self) -> None:
        running_ids = set(self._runs)
        holder, held_ids = await self._call(lambda store: (store.holder, store.held_batches()))
        if lost_ids := running_ids - held_ids:
            await self._drop(lost_ids)
            # Their remaining writes come before the next claim, and so match no row.
            await self._context.writer.write(BatchChanges())
        if self._may_claim():
            await self._begin_strays(held_ids - set(self._runs))
            while rows := await self._claim(holder):
                for batch in Batch.from_rows(rows):
                    _log.warning("batches: %s of a server that has ended goes on here", batch.batch_id)
                    self._start(batch)

    async def _claim(self, holder: "Holder") -> list[BatchRow]:
        def claim(store: "PostgresStore") -> list[BatchRow]:
            return store.claim_batches(limit=MAX_CLAIMED) if store.holder == holder else []

        rows: list[BatchRow] = await self._call(claim)
        return rows

    async def _begin_strays(self, strays: set[str]) -> None:
        """Run batches held without a run for longer than a start takes: their commit had looked like a failure."""
        for batch_id in strays & self._strays:
            with contextlib.suppress(DamagedError):  # claiming the batch has logged it
                row: BatchRow | None = await self._call(partial(_find_batch, batch_id=batch_id))
                if row is not None and not row.is_over:
                    self._start(Batch.from_row(row))
        self._strays = strays

    async def _not_here(self, batch_id: str) -> SplitfuseError:
        """Like Batches._not_here, but names the server that runs the batch."""
        holder: Holder | None = await self._call(lambda store: store.batch_holder(batch_id))
        here: Holder = await self._call(lambda store: store.holder)
        if holder is None or holder == here:
            return MovedError()
        return HeldElsewhereError(holder.url, is_held=lambda: self._is_held(batch_id, holder))

    async def _is_held(self, batch_id: str, holder: "Holder") -> bool:
        """True if that server still holds the batch, or the database is away and the answer unknown."""
        with contextlib.suppress(NotReadyError):
            return bool(await self._call(lambda store: store.batch_holder(batch_id)) == holder)
        return True


def _find_batch(store: "PostgresStore", *, batch_id: str) -> BatchRow | None:
    return store.find_batch(batch_id)
