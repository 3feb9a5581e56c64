"""SharedResults: DurableResults in a database that several servers use at once.

A job is held by the server that runs it, for as long as that renews its lease. Any server finds any job: one that runs
elsewhere is asked for where it runs, one that has ended is read from the table, each time, so that what was deleted
through one server is gone from all. What a dead server held, the others claim.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...engine.errors import SplitfuseError
from ..http.errors import HeldElsewhereError, MovedError, NotReadyError
from ..jobs.job import Job
from ..jobs.result_store import ResultLimits
from .durable_results import DurableResults
from .kept_request import KeptKind, KeptRequest
from .records import JobRow
from .sealing import Sealing
from .shared_key_locks import SharedKeyLocks
from .store import Store
from .unfinished_job import UnfinishedJob

if TYPE_CHECKING:
    from ...engine.serving.async_engine import AsyncEngine
    from ...engine.serving.submitted_request import SubmittedRequest
    from .postgres_store import Holder, PostgresStore
    from .resumption import Resumption

_log = logging.getLogger("splitfuse.results")
BEATS_PER_LEASE = 15  # a beat also looks for jobs to claim: those of a server that stops wait for no lease
MAX_CLAIMED = 64  # at once: the servers that live share what a dead one held


class SharedResults(DurableResults):
    """Memory holds what runs here. `lease_s`: after so long without a beat a server's jobs are taken over."""

    is_shared = True

    def __init__(
        self,
        limits: ResultLimits,
        *,
        open_store: "Callable[[], PostgresStore]",
        kinds: Mapping[str, KeptKind],
        lease_s: float,
        sealing: Sealing | None = None,
    ) -> None:
        super().__init__(limits, open_store=open_store, kinds=kinds, sealing=sealing)
        self._lease_s = lease_s
        self._key_locks = SharedKeyLocks(self._call)
        self._engine: AsyncEngine | None = None
        self._resumption: Resumption | None = None
        self._beating: asyncio.Task[None] | None = None
        self._resuming: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """As DurableResults; this server's lease begins."""
        await super().open()
        self._beating = asyncio.create_task(self._beat())

    def begin_claiming(self, resumption: "Resumption", engine: "AsyncEngine") -> None:
        """From now on go on with what dead servers left."""
        self._resumption, self._engine = resumption, engine

    async def close(self, *, has_crashed: bool = False) -> None:
        """As DurableResults; other servers go on with what has not ended at once."""
        if self._beating is not None:
            await _cancel([self._beating])
        await self._let_go(has_crashed=has_crashed)

    async def accept(
        self, job: Job, handle: "SubmittedRequest", request: KeptRequest, *, user: str, fingerprint: str
    ) -> None:
        """As DurableResults. Raises MovedError if the lease was lost since the job's sink was made."""
        if job.seq_id not in self._kept:
            raise MovedError
        await super().accept(job, handle, request, user=user, fingerprint=fingerprint)

    async def begin(self, jobs: Sequence[UnfinishedJob]) -> None:
        """As DurableResults; while the database is away it is written later, before anything of them is told."""
        with contextlib.suppress(NotReadyError):
            await super().begin(jobs)

    def _take_over(self) -> tuple[Store, bool, list[UnfinishedJob]]:
        return self._open_store(), True, []  # claimed when there is an engine: until then other servers may

    async def _stored(self, find: Callable[[Store], JobRow | None], *, owner: str) -> Job | None:
        """As DurableResults, for this reader only. Raises HeldElsewhereError."""
        row, holder = await self._call(lambda store: _with_holder(store, find(store)))
        if row is None or row.owner != owner:
            return None
        if row.status is not None:
            return self._finished_job(row)
        if holder is None:
            raise MovedError
        raise HeldElsewhereError(holder.url, is_held=lambda: self._is_held(row.seq_id, holder))

    async def _is_held(self, seq_id: str, holder: "Holder") -> bool:
        """Also while the database is away: nothing can be known then."""
        with contextlib.suppress(NotReadyError):
            return bool(await self._call(lambda store: store.holder_of(seq_id)) == holder)
        return True

    def _grew(self, job: Job, num_bytes: int) -> None:
        is_kept = job.seq_id in self._kept
        super()._grew(job, num_bytes)
        if is_kept and job.finished:
            self.forget(job)

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
        """The lease was lost: let go of all jobs, without an end, for other servers go on with them."""
        _log.error("results: the lease was lost; other servers go on with %d jobs of this one", len(self._kept))
        await self._let_go()
        for kept in list(self._kept.values()):
            self.forget(kept.job)
            if self._engine is not None:
                self._engine.abort(kept.job.seq_id)
        await super().open()

    async def _let_go(self, *, has_crashed: bool = False) -> None:
        await _cancel(self._resuming)
        await super().close(has_crashed=has_crashed)

    async def _claimed(self) -> list[UnfinishedJob]:
        room = min(MAX_CLAIMED, (self.limits.max_results - len(self._jobs)) // 2)  # half, for others come meanwhile
        jobs: list[UnfinishedJob] = await self._call(lambda store: self._claim(store, room)) if room > 0 else []
        return jobs

    def _claim(self, store: "PostgresStore", limit: int) -> list[UnfinishedJob]:
        with store.claiming(limit=limit) as rows:
            return self._read_back(rows, store.segments)

    def _go_on_with(self, jobs: list[UnfinishedJob]) -> None:
        _log.warning("results: %d jobs of a server that has ended go on here", len(jobs))
        for unfinished in jobs:
            self._insert(unfinished.kept.job)  # no limit refuses a job that was accepted once
            self._kept[unfinished.row.seq_id] = unfinished.kept
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
