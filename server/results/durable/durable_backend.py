"""DurableBackend: keeps jobs in a store, so that they outlive the process, whatever ends it."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ....engine.core.outputs import OutputDelta, RequestMetrics
from ....engine.errors import ConfigError, QueueFullError, RequestFailedError, new_error_id
from ...http.errors import NotReadyError, StoreUnavailableError
from ...jobs.idempotency import IdempotencyKey
from ...jobs.job import Job
from ...jobs.job_index import JobIndex
from ...jobs.result_backend import ResultBackend
from ...jobs.saved_request import SavedRequest
from .checksum import DamagedError
from .journal import Journal, StoredJob
from .records import JobRow
from .store import Store, StoreError, UnreadableError, has_id_form
from .stored_jobs import StoredJobs
from .unfinished_job import UnfinishedJob

if TYPE_CHECKING:
    from ....engine.serving.submitted_request import SubmittedRequest

T = TypeVar("T")
_log = logging.getLogger("splitfuse.results")


class DurableBackend(ResultBackend):
    """ResultBackend over a Store. Memory holds unfinished jobs and, as far as there is room, others."""

    file: Path | None = None  # an SQLite store's file

    def __init__(self, index: JobIndex, stored: StoredJobs, *, open_store: Callable[[], Store]) -> None:
        super().__init__()
        self.index = index
        self.stored = stored
        self.to_resume: list[UnfinishedJob] = []
        self._open_store = open_store
        self._journal: Journal | None = None
        self._kept: dict[str, StoredJob] = {}  # jobs that run here

    def stats(self) -> dict[str, object]:
        """Return the journal's lag, and the size of the file if there is one."""
        lag_s = 0.0 if self._journal is None else self._journal.lag_s
        files = () if self.file is None else (self.file, self.file.with_name(f"{self.file.name}-wal"))
        num_bytes = sum(path.stat().st_size for path in files if path.exists())
        return {"results_journal_lag_seconds": lag_s, "results_file_bytes": num_bytes}

    async def open(self) -> None:
        """Open the store and take over what an earlier process left. Raises ConfigError."""
        try:
            store, is_clean, self.to_resume = await asyncio.to_thread(self.take_over)
            self._journal = Journal(
                store,
                on_failure=self._on_failure,
                wall_clock=self.stored.wall_clock,
                is_shared=self.is_shared,
                last_job=self.stored.last_deleted,
            )
        except StoreError as exc:
            raise ConfigError(f"--results: {exc}") from exc
        self.keep(self.to_resume)
        self.failure = None
        if self.to_resume:
            ended = "ended" if is_clean else "died"
            _log.warning("results: the last process %s; %d unfinished jobs go on", ended, len(self.to_resume))

    def take_over(self) -> tuple[Store, bool, list[UnfinishedJob]]:
        """Open the store, in a thread. Returns whether the last process had ended properly, and its unfinished jobs."""
        store = self._open_store()
        return store, store.begin_process(), self.stored.unfinished(store.unfinished(), store.segments)

    def keep(self, jobs: Sequence[UnfinishedJob]) -> None:
        """Hold jobs that go on here; no limit refuses a job that was accepted once."""
        for unfinished in jobs:
            self.index.insert(unfinished.kept.job)
            self._hold(unfinished.kept)

    async def close(self, *, has_crashed: bool = False) -> None:
        """Write pending events. Unended jobs stay unfinished on disk, and their streams break off.
        `has_crashed`: the engine died, so that for each job that was running this counts as a crash.
        """
        if self._journal is None:
            return
        journal, self._journal = self._journal, None
        await journal.close(has_crashed=has_crashed)
        for kept in self._kept.values():
            kept.job.suspend()

    async def find(self, seq_id: str, *, owner: str) -> Job | None:
        """Like ResultBackend. Raises NotReadyError while the store is not open."""
        if not has_id_form(seq_id):
            return None
        try:
            return await self.find_stored(lambda store: _named(store.find(seq_id), seq_id), owner=owner)
        except DamagedError as exc:
            return self.stored.damaged(JobRow(0, seq_id, owner, self.stored.wall_clock(), "", 0), exc)

    async def request_of(self, job: Job) -> dict[str, Any] | None:
        """Like ResultBackend."""
        row = await self.use(lambda store: store.find(job.seq_id))
        return None if row is None else self.stored.request_of(row)

    async def find_key(self, owner: str, key: IdempotencyKey) -> Job | None:
        """Like ResultBackend. Raises NotReadyError while the store is not open."""
        return await self.find_stored(lambda store: store.find_key(owner, key.digest), owner=owner)

    async def find_stored(self, find: Callable[[Any], JobRow | None], *, owner: str) -> Job | None:
        """Return the owner's job of a row, and hold it in memory if there is room."""
        row = await self.use(find)
        if row is None or row.owner != owner:
            return None
        if (job := self.index.get(row.seq_id, owner=owner)) is not None:  # another reader has brought it back meanwhile
            return job
        if (job := self.stored.finished(row)) is None:
            return None
        with contextlib.suppress(QueueFullError):  # there is no room to keep it in memory too
            self.index.add(job)
        return job

    async def page(self, owner: str, *, after: Job | None, limit: int, status: str | None) -> list[Job]:
        """Like ResultBackend; jobs that are in memory too are read from disk again."""
        before = None if after is None else (after.created, after.seq_id)
        rows = await self.use(lambda store: store.page(owner, before=before, limit=limit, status=status))
        return [job for row in rows if (job := self.stored.finished(row)) is not None]

    async def num_bytes_of(self, owner: str) -> int | None:
        """Return about the bytes of the owner's jobs on disk."""
        return await self.use(lambda store: store.num_bytes_of(owner))

    async def delete_all(self, owner: str) -> set[str]:
        """Delete the owner's jobs on disk. Returns their ids."""
        seq_ids = set(await self.use(lambda store: store.delete_owner(owner)))
        self._drop(seq_ids, owner)
        return seq_ids

    async def delete(self, job: Job) -> None:
        """Delete the job on disk."""
        with _translated():
            await self._opened().delete(job.seq_id)
        self._drop([job.seq_id], job.owner)

    def _drop(self, seq_ids: Iterable[str], owner: str) -> None:
        """Forget deleted jobs that a reader, who had read the disk before, has brought back meanwhile."""
        for seq_id in seq_ids:
            if (job := self.index.get(seq_id, owner=owner)) is not None:
                self.index.forget(job)

    def forget(self, job: Job) -> None:
        """Hold the job no longer; it stays on disk."""
        self._kept.pop(job.seq_id, None)

    def job_ended(self, job: Job) -> None:
        """Hold the job no longer."""
        self._kept.pop(job.seq_id, None)

    async def accept(
        self, job: Job, handle: "SubmittedRequest", kept: SavedRequest, *, user: str, fingerprint: str
    ) -> None:
        """Return when the job is on disk."""
        journal = self._opened()
        if (held := self._kept.get(job.seq_id)) is None:
            raise NotReadyError("the request was deleted while it was being accepted; send it again", code="cancelled")
        key = job.idempotency_key
        text = _dumped(kept, job, handle, user=user, fingerprint=fingerprint, ttl_s=held.ttl_s)
        row = JobRow(
            num=held.num,
            seq_id=job.seq_id,
            owner=job.owner,
            created=job.created,
            request=text,
            first_segment=journal.next_segment,
            idempotency_key=None if key is None else key.digest,
            body_digest=None if key is None else key.body_digest,
        )
        with _translated():
            await journal.accept(row, held)

    def sink(self, job: Job) -> Callable[[OutputDelta], None]:
        """Return where the engine's deltas of a job go that will be accepted. Raises StoreUnavailableError."""
        journal = self._opened()
        if self.failure is not None:
            raise _unavailable(self.failure)
        ttl_s = min(self.index.limits.ttl, job.ttl_s or self.index.limits.ttl)
        kept = StoredJob(journal.new_number(), job, len(job.outputs), ttl_s, early=[])
        self._hold(kept)
        return journal.sink(kept)

    def resumed_sink(self, unfinished: UnfinishedJob) -> Callable[[OutputDelta], None]:
        """Return where the engine's deltas of a resumed job go."""
        return self._opened().sink(unfinished.kept)

    async def begin(self, jobs: Sequence[UnfinishedJob]) -> None:
        """Note that this process runs these jobs from now on. Raises StoreUnavailableError."""
        with _translated():
            await self._opened().begin([unfinished.row.num for unfinished in jobs])

    def renew(
        self, unfinished: UnfinishedJob, handle: "SubmittedRequest", request: SavedRequest, *, fingerprint: str
    ) -> None:
        """Keep a job as another model has taken it up; that is on disk before anything of it is delivered."""
        user, ttl_s = unfinished.request["user"], unfinished.kept.ttl_s
        text = _dumped(request, unfinished.kept.job, handle, user=user, fingerprint=fingerprint, ttl_s=ttl_s)
        self._opened().renew(unfinished.row.num, text)

    async def amend(self, job: Job, **fields: Any) -> None:
        """Return when changed parameters of a running job are on disk, so that another process goes on with them."""
        kept, request = self._kept.get(job.seq_id), await self.request_of(job)
        if kept is not None and request is not None:
            text = json.dumps(request | {"amended": fields}, separators=(",", ":"))
            self._opened().renew(kept.num, text)
            await self.use(lambda store: None)  # after it is written

    def fail(self, unfinished: UnfinishedJob, *, reason: str) -> None:
        """End a job that cannot go on, with the tokens that it had."""
        error_id = new_error_id()
        error = RequestFailedError(reason, error_id=error_id, code="interrupted")
        _log.error("results: job %s… fails, error id %s: %s", unfinished.row.seq_id[:8], error_id, reason)
        sink = self.resumed_sink(unfinished)
        arrival = unfinished.resumed.arrival_time
        for index, known in enumerate(unfinished.resumed.outputs):
            if not known.has_ended:
                num_prompt = len(unfinished.request["prompt_token_ids"])
                metrics = RequestMetrics(arrival, None, None, time.monotonic(), num_prompt, len(known.token_ids), 0, 0)
                sink(OutputDelta(unfinished.row.seq_id, index, "", (), None, "error", None, metrics, error))

    async def use(self, function: Callable[[Any], T]) -> T:
        """Return what the function gets of the store. Raises NotReadyError while it is not open, DamagedError."""
        with _translated():
            try:
                return await self._opened().read(function)
            except UnreadableError as exc:
                _log.error("results: %s", exc)
                raise DamagedError from exc

    def _hold(self, kept: StoredJob) -> None:
        self._kept[kept.job.seq_id] = kept
        kept.job.observe(self)

    def _opened(self) -> Journal:
        if self._journal is None:
            raise NotReadyError("the results are still being opened", code="loading")
        return self._journal

    def _on_failure(self, failure: StoreError | None) -> None:
        self.failure = failure
        if failure is None:
            _log.warning("results: the store works again, all is written")
        else:
            _log.error("results: nothing can be written (%s); no job is accepted, running ones go on", failure)


def _dumped(
    request: SavedRequest, job: Job, handle: "SubmittedRequest", *, user: str, fingerprint: str, ttl_s: float
) -> str:
    """Serialise the state that resumes a job."""
    stored = {
        "kind": request.kind,
        "body": request.body,
        "user": user,
        "fingerprint": fingerprint,
        "attachment": request.attachment,
        "defaults": request.defaults,
        "prompt_token_ids": handle.prompt_token_ids,
        "seed": handle.seed,
        "parent": handle.parent,
        "model": job.model,
        "num_outputs": len(job.outputs),
        "stream_interval": job.stream_interval,
        "ttl_s": ttl_s,
    }
    return json.dumps(stored, separators=(",", ":"))


def _named(row: JobRow | None, seq_id: str) -> JobRow | None:
    """Return the row with the id by which it was found, whatever is left of its own."""
    return None if row is None else replace(row, seq_id=seq_id)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except StoreError as exc:
        raise _unavailable(exc) from exc


def _unavailable(exc: Exception) -> StoreUnavailableError:
    return StoreUnavailableError(f"results cannot be kept now ({exc}); ask for a stream, or try again later")
