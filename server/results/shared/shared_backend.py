"""SharedBackend: DurableBackend over a database that several servers use at once.

A job is held by the server that runs it, for as long as that server renews its lease. Any server finds any job: it
asks the holder of a running job, and reads an ended job from the table each time, so a job deleted through one server
is gone from all. The other servers claim the jobs of a dead server.
"""

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from ....engine.errors import SplitfuseError
from ...http.errors import HeldElsewhereError, MovedError, NotReadyError, StoreUnavailableError
from ...jobs.idempotency import IdempotencyKey, KeyLocks
from ...jobs.job import Job
from ...jobs.job_index import JobIndex
from ...jobs.saved_request import SavedRequest
from ..durable.durable_backend import DurableBackend
from ..durable.records import JobRow
from ..durable.resumption import Resumption
from ..durable.store import Store
from ..durable.stored_jobs import StoredJobs
from ..durable.unfinished_job import UnfinishedJob

if TYPE_CHECKING:
    from ....engine.serving.async_engine import AsyncEngine
    from ....engine.serving.submitted_request import SubmittedRequest
    from .postgres_store import Holder, PostgresStore

_RETRY_S = 0.05
_NUM_RETRIES = 200
_log = logging.getLogger("splitfuse.results")
BEATS_PER_LEASE = 15  # a beat also looks for jobs to claim; a stopping server's jobs wait for no lease
MAX_CLAIMED = 64  # at once: the servers that live share what a dead one held


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


class SharedBackend(DurableBackend):
    """Memory holds what runs here. `lease_s`: seconds without a beat until a server's jobs are taken over."""

    is_shared = True

    def __init__(
        self,
        index: JobIndex,
        stored: StoredJobs,
        *,
        open_store: "Callable[[], PostgresStore]",
        lease_s: float,
    ) -> None:
        super().__init__(index, stored, open_store=open_store)
        self.key_locks = SharedKeyLocks(self._call)
        self._lease_s = lease_s
        self._engine: AsyncEngine | None = None
        self._resumption: Resumption | None = None
        self._beating: asyncio.Task[None] | None = None
        self._resuming: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Open the database; this server's lease begins."""
        await super().open()
        self._beating = asyncio.create_task(self._beat())

    def begin_claiming(self, resumption: Resumption, engine: "AsyncEngine") -> None:
        """From now on go on with the jobs that dead servers left."""
        self._resumption, self._engine = resumption, engine

    async def close(self, *, has_crashed: bool = False) -> None:
        """Write pending events; other servers take over unfinished jobs at once."""
        if self._beating is not None:
            await _cancel([self._beating])
        await self._let_go(has_crashed=has_crashed)

    async def accept(
        self, job: Job, handle: "SubmittedRequest", kept: SavedRequest, *, user: str, fingerprint: str
    ) -> None:
        """Return when the job is kept. Raises MovedError if the lease was lost since the job's sink was made."""
        if job.seq_id not in self._kept:
            raise MovedError
        await super().accept(job, handle, kept, user=user, fingerprint=fingerprint)

    async def begin(self, jobs: Sequence[UnfinishedJob]) -> None:
        """Note that this server runs these jobs. While the database is away the note waits, and so does delivery."""
        with contextlib.suppress(NotReadyError):
            await super().begin(jobs)

    def take_over(self) -> tuple[Store, bool, list[UnfinishedJob]]:
        """Open the database. Jobs are claimed when there is an engine: until then other servers may."""
        return self._open_store(), True, []

    async def find_stored(self, find: Callable[[Any], JobRow | None], *, owner: str) -> Job | None:
        """Return the owner's job of a row, for this reader only. Raises HeldElsewhereError."""
        row, holder = await self._call(lambda store: _with_holder(store, find(store)))
        if row is None or row.owner != owner:
            return None
        if row.status is not None:
            return self.stored.finished(row)
        if holder is None:
            raise MovedError
        raise HeldElsewhereError(holder.url, is_held=lambda: self._is_held(row.seq_id, holder))

    def job_ended(self, job: Job) -> None:
        """Forget the job: from now on every reader reads the table."""
        if job.seq_id in self._kept:
            super().job_ended(job)
            self.index.forget(job)

    async def _is_held(self, seq_id: str, holder: "Holder") -> bool:
        """True also while the database is away: nothing can be known then."""
        with contextlib.suppress(NotReadyError):
            return bool(await self._call(lambda store: store.holder_of(seq_id)) == holder)
        return True

    async def _call(self, function: "Callable[[PostgresStore], Any]") -> Any:
        return await self.use(function)

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._lease_s / BEATS_PER_LEASE)
            try:
                await self._beat_once()
            except SplitfuseError as exc:  # the database is away
                _log.info("results: no beat: %s", exc)
            except Exception:
                _log.exception("results: no jobs of other servers can be taken over")

    async def _beat_once(self) -> None:
        if self._journal is None:
            await super().open()
        if not await self._call(lambda store: store.beat()):
            await self._leave()
        elif self._engine is not None and self._engine.is_ready:
            while jobs := await self._claimed():
                self._go_on_with(jobs)

    async def _leave(self) -> None:
        """Let go of all jobs, without an end: the lease was lost, so other servers go on with them."""
        _log.error("results: the lease was lost; other servers go on with %d jobs of this one", len(self._kept))
        await self._let_go()
        for kept in list(self._kept.values()):
            self.index.forget(kept.job)
            self.forget(kept.job)
            if self._engine is not None:
                self._engine.abort(kept.job.seq_id)
        await super().open()

    async def _let_go(self, *, has_crashed: bool = False) -> None:
        await _cancel(self._resuming)
        await super().close(has_crashed=has_crashed)

    async def _claimed(self) -> list[UnfinishedJob]:
        # Half of the room, for other jobs come meanwhile.
        room = min(MAX_CLAIMED, (self.index.limits.max_results - len(self.index)) // 2)
        jobs: list[UnfinishedJob] = await self._call(lambda store: self._claim(store, room)) if room > 0 else []
        return jobs

    def _claim(self, store: "PostgresStore", limit: int) -> list[UnfinishedJob]:
        with store.claiming(limit=limit) as rows:
            return self.stored.unfinished(rows, store.segments)

    def _go_on_with(self, jobs: list[UnfinishedJob]) -> None:
        _log.warning("results: %d jobs of a server that has ended go on here", len(jobs))
        self.keep(jobs)
        assert self._resumption is not None
        task = asyncio.create_task(self._resumption.resume(jobs))
        self._resuming.add(task)
        task.add_done_callback(self._resuming.discard)


async def _cancel(tasks: Collection[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _with_holder(store: "PostgresStore", row: JobRow | None) -> "tuple[JobRow | None, Holder | None]":
    holder = None if row is None or row.status is not None else store.holder_of(row.seq_id)
    return row, holder if holder != store.holder else None
