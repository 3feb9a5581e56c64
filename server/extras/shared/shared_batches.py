"""SharedBatches: batches in a database that several servers use at once.

A batch is held by the server that runs it. A server that finds that it holds a batch no more ends its run, whose writes
hit no row by then, and claims those that nobody holds. All else that is known of a batch any server reads.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from ....engine.errors import SplitfuseError
from ...http.errors import HeldElsewhereError, MovedError, NotReadyError
from ..batches.batch import Batch
from ..batches.batch_run import Answer
from ..batches.batches import Batches
from ..batches.settings import BatchSettings
from ..durable.batch_rows import BatchChanges, BatchRow
from ..durable.durable_backend import DurableBackend
from ..durable.sealing import DamagedError
from .settings import SharedSettings
from .shared_backend import BEATS_PER_LEASE, MAX_CLAIMED
from .shared_key_locks import SharedKeyLocks

if TYPE_CHECKING:
    from .postgres_store import Holder, PostgresStore

_log = logging.getLogger("splitfuse.batches")


class SharedBatches(Batches):
    """Batches of which some run here. They are claimed while `may_claim`."""

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
        self._strays: set[str] = set()  # held here, without a run

    async def resume(self) -> None:
        """From now on go on with what other servers left."""
        self._looking = asyncio.create_task(self._look())

    async def stop(self, *, has_crashed: bool = False) -> None:
        """As Batches; other servers go on with them at once, after a crash when this one's end is noted."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await super().stop(has_crashed=has_crashed)
        if not has_crashed:  # else their lines would count no crash
            with contextlib.suppress(NotReadyError):
                await self._call(lambda store: store.release_batches())

    async def _call(self, function: "Callable[[PostgresStore], Any]") -> Any:
        return await self._backend.use(function)

    async def _look(self) -> None:
        while True:
            try:
                await self._look_once()
            except SplitfuseError as exc:  # the database is away
                _log.info("batches: none can be claimed: %s", exc)
            except Exception:
                _log.exception("batches: none of other servers can be taken over")
            await asyncio.sleep(self._interval_s)

    async def _look_once(self) -> None:
        known = set(self._runs)
        holder, held = await self._call(lambda store: (store.holder, store.held_batches()))
        if lost := known - held:
            await self._drop(lost)
            # What they have still to write comes before the next claim, and so hits no row.
            await self._context.writer.write(BatchChanges())
        if self._may_claim():
            await self._begin_strays(held - set(self._runs))
            while rows := await self._claimed(holder):
                for row in rows:
                    _log.warning("batches: %s of a server that has ended goes on here", row.batch_id)
                    self._start(Batch.from_row(row))

    async def _claimed(self, holder: "Holder") -> list[BatchRow]:
        def claim(store: "PostgresStore") -> list[BatchRow]:
            return store.claim_batches(limit=MAX_CLAIMED) if store.holder == holder else []

        rows: list[BatchRow] = await self._call(claim)
        return rows

    async def _begin_strays(self, strays: set[str]) -> None:
        """Run what is held without a run for longer than it takes to begin: its commit looked like a failure."""
        for batch_id in strays & self._strays:
            with contextlib.suppress(DamagedError):  # claiming it has been logged
                row: BatchRow | None = await self._call(partial(_found, batch_id=batch_id))
                if row is not None and not row.is_over:
                    self._start(Batch.from_row(row))
        self._strays = strays

    async def _not_here(self, batch_id: str) -> SplitfuseError:
        """As Batches; the server that runs it is to be asked."""
        holder: Holder | None = await self._call(lambda store: store.batch_holder(batch_id))
        here: Holder = await self._call(lambda store: store.holder)
        if holder is None or holder == here:
            return MovedError()
        return HeldElsewhereError(holder.url, is_held=lambda: self._is_held(batch_id, holder))

    async def _is_held(self, batch_id: str, holder: "Holder") -> bool:
        """Also while the database is away: nothing can be known then."""
        with contextlib.suppress(NotReadyError):
            return bool(await self._call(lambda store: store.batch_holder(batch_id)) == holder)
        return True


def _found(store: "PostgresStore", *, batch_id: str) -> BatchRow | None:
    return store.find_batch(batch_id)
