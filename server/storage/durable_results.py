"""DurableResults: a ResultStore whose kept jobs outlive the process, whatever ends it."""

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from ...engine.core.outputs import OutputDelta, RequestMetrics
from ...engine.errors import ConfigError, QueueFullError, RequestFailedError, new_error_id
from ..http.errors import NotReadyError, ResultNotFoundError, StoreUnavailableError
from ..jobs.idempotency import IdempotencyKey
from ..jobs.job import Attachment, Job
from ..jobs.result_store import ResultLimits, ResultStore, newness
from .journal import Journal, KeptJob
from .kept_request import KeptKind, KeptRequest
from .records import JobRow, Segment, delta_of, load_result, load_segment
from .sealing import DamagedError, Seal, Sealing
from .store import Store, StoreError
from .unfinished_job import BegunJob, UnfinishedJob

if TYPE_CHECKING:
    from ...engine.serving.submitted_request import SubmittedRequest

T = TypeVar("T")
_log = logging.getLogger("splitfuse.results")
# In place of a request that cannot be read: its job only fails.
_DAMAGED_REQUEST: dict[str, Any] = {
    "kind": None,
    "attachment": None,
    "prompt_token_ids": [],
    "seed": 0,
    "model": "",
    "num_outputs": 1,
    "stream_interval": 1,
}


class DurableResults(ResultStore):
    """Memory holds unfinished jobs and, as far as there is room, others; the store holds every kept one."""

    def __init__(
        self,
        limits: ResultLimits,
        *,
        open_store: Callable[[], Store],
        kinds: Mapping[str, KeptKind],
        sealing: Sealing | None = None,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(limits, clock=clock)
        self._open_store = open_store
        self._kinds = kinds
        self._sealing = sealing
        self._wall_clock = wall_clock
        self._journal: Journal | None = None
        self._kept: dict[str, KeptJob] = {}  # those that run here
        self.failure: StoreError | None = None
        self.to_resume: list[UnfinishedJob] = []
        self._last_deleted = 0  # the largest number of a job that is gone of which there still are events

    async def open(self) -> None:
        """Open the store and take over what an earlier process left. Raises ConfigError."""
        try:
            store, is_clean, self.to_resume = await asyncio.to_thread(self._take_over)
        except StoreError as exc:
            raise ConfigError(f"--results: {exc}") from exc
        for unfinished in self.to_resume:
            self._insert(unfinished.kept.job)  # whatever --max-results is now
            self._kept[unfinished.row.seq_id] = unfinished.kept
        self._journal = Journal(
            store,
            on_failure=self._on_failure,
            wall_clock=self._wall_clock,
            is_shared=self.is_shared,
            last_job=self._last_deleted,
        )
        self.failure = None
        if self.to_resume:
            ended = "ended" if is_clean else "died"
            _log.warning("results: the last process %s; %d unfinished jobs go on", ended, len(self.to_resume))

    def _take_over(self) -> tuple[Store, bool, list[UnfinishedJob]]:
        store = self._open_store()
        return store, store.begin_process(), self._read_back(store.unfinished(), store.segments)

    async def close(self, *, has_crashed: bool = False) -> None:
        """Write what has come. Jobs that have not ended stay unfinished on disk, and their streams break off.
        `has_crashed`: the engine died, so that for each one that was running this counts as a crash.
        """
        if self._journal is None:
            return
        journal, self._journal = self._journal, None
        await journal.close(has_crashed=has_crashed)
        for kept in self._kept.values():
            kept.job.suspend()

    async def find(self, seq_id: str, *, owner: str) -> Job:
        """As ResultStore. Raises NotReadyError while the store is not open, StoreUnavailableError."""
        with contextlib.suppress(ResultNotFoundError):
            return self.get(seq_id, owner=owner)
        if (job := await self._stored(lambda store: store.find(seq_id), owner=owner)) is None:
            raise ResultNotFoundError
        return job

    async def find_key(self, owner: str, key: IdempotencyKey) -> Job | None:
        """As ResultStore. Raises as `find`."""
        if (job := await super().find_key(owner, key)) is not None:
            return job
        return await self._stored(lambda store: store.find_key(owner, key.digest), owner=owner)

    async def _stored(self, find: Callable[[Store], JobRow | None], *, owner: str) -> Job | None:
        """The owner's job that is in no memory."""
        row = await self.use(find)
        if row is None or row.owner != owner:
            return None
        with contextlib.suppress(ResultNotFoundError):  # another reader has brought it back meanwhile
            return self.get(row.seq_id, owner=owner)
        if (job := self._finished_job(row)) is None:
            return None
        with contextlib.suppress(QueueFullError):  # there is no room to keep it in memory too
            self.add(job)
        return job

    async def page(self, owner: str, *, after: Job | None, limit: int, status: str | None) -> list[Job]:
        """As ResultStore. Raises as `find`."""
        here = await super().page(owner, after=after, limit=limit, status=status)
        before = None if after is None else (after.created, after.seq_id)
        rows = await self.use(lambda store: store.page(owner, before=before, limit=limit, status=status))
        jobs = {job.seq_id: job for job in here}
        for row in rows:
            if row.seq_id not in jobs and (job := self._finished_job(row)) is not None:
                jobs[row.seq_id] = job
        return sorted(jobs.values(), key=newness, reverse=True)[:limit]

    async def num_bytes_of(self, owner: str) -> int:
        """As ResultStore, on disk. Raises as `find`."""
        return await self.use(lambda store: store.num_bytes_of(owner))

    async def delete_all(self, owner: str) -> set[str]:
        """As ResultStore. Raises StoreUnavailableError."""
        seq_ids = await super().delete_all(owner)
        return seq_ids.union(await self.use(lambda store: store.delete_owner(owner)))

    def _finished_job(self, row: JobRow) -> Job | None:
        """The job of a row; None if it has not ended, or has expired."""
        if row.result is None or self._is_expired(row):
            return None
        try:
            request, result = self._text(row, "request")[0], self._text(row, "result")[0]
        except DamagedError as exc:
            _log.error("results: job %s…: error id %s: %s", row.seq_id[:8], exc.error_id, exc)
            job = self._job_of(row, _DAMAGED_REQUEST)
            deltas = [OutputDelta(row.seq_id, 0, "", (), None, "error", None, None, exc)]
        else:
            job = self._job_of(row, json.loads(request))
            deltas = [delta_of(event, request_id=row.seq_id) for event in load_result(result)]
        job.ttl_s = None if row.expires is None else row.expires - self._wall_clock()
        for delta in deltas:
            job.sink(delta)
        return job

    def _text(self, row: JobRow, name: str) -> tuple[str, Seal | None]:
        """A text of a row, and the job's key, where the store is encrypted. Raises DamagedError."""
        text = getattr(row, name)
        return (text, None) if self._sealing is None else self._sealing.open_text(row.owner, row.seq_id, name, text)

    async def accept(
        self, job: Job, handle: "SubmittedRequest", request: KeptRequest, *, user: str, fingerprint: str
    ) -> None:
        """Return when the job is on disk: from then on it is kept. Raises StoreUnavailableError."""
        journal = self._opened()
        kept, key = self._kept[job.seq_id], job.idempotency_key
        text = _dumped(request, job, handle, user=user, fingerprint=fingerprint, ttl_s=kept.ttl_s)
        row = JobRow(
            num=kept.num,
            seq_id=job.seq_id,
            owner=job.owner,
            created=job.created,
            request=kept.stored("request", text),
            first_segment=journal.next_segment,
            idempotency_key=None if key is None else key.digest,
            body_digest=None if key is None else key.body_digest,
        )
        with _translated():
            await journal.accept(row)

    def sink(self, job: Job, *, webhook: str | None = None) -> Callable[[OutputDelta], None]:
        """Where the engine's deltas of a job go that will be accepted. Raises StoreUnavailableError."""
        journal = self._opened()
        if self.failure is not None:
            raise _unavailable(self.failure)
        ttl_s = min(self.limits.ttl, job.ttl_s or self.limits.ttl)
        seal = None if self._sealing is None else self._sealing.new_seal(job.owner, job.seq_id)
        kept = KeptJob(journal.new_number(), job, len(job.outputs), ttl_s, webhook, seal=seal)
        self._kept[job.seq_id] = kept
        return journal.sink(kept)

    def resumed_sink(self, unfinished: UnfinishedJob) -> Callable[[OutputDelta], None]:
        """The same for a job that goes on."""
        return self._opened().sink(unfinished.kept)

    async def begin(self, jobs: Sequence[UnfinishedJob]) -> None:
        """Note that this process runs these jobs from now on. Raises StoreUnavailableError."""
        with _translated():
            await self._opened().begin([unfinished.row.num for unfinished in jobs])

    def renew(
        self, unfinished: UnfinishedJob, handle: "SubmittedRequest", request: KeptRequest, *, fingerprint: str
    ) -> None:
        """Keep a job as another model has taken it up; that is on disk before anything of it is told."""
        user, ttl_s = unfinished.request["user"], unfinished.kept.ttl_s
        text = _dumped(request, unfinished.kept.job, handle, user=user, fingerprint=fingerprint, ttl_s=ttl_s)
        self._opened().renew(unfinished.row.num, unfinished.kept.stored("request", text))

    def fail(self, unfinished: UnfinishedJob, *, reason: str) -> None:
        """End a job that cannot go on, with what it had."""
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

    async def delete(self, job: Job) -> None:
        """As ResultStore. Raises StoreUnavailableError."""
        self.forget(job)
        with _translated():
            await self._opened().delete(job.seq_id)

    def forget(self, job: Job) -> None:
        """As ResultStore; what is on disk stays there."""
        super().forget(job)
        self._kept.pop(job.seq_id, None)

    def _grew(self, job: Job, num_bytes: int) -> None:
        super()._grew(job, num_bytes)
        if job.finished:
            self._kept.pop(job.seq_id, None)

    def _opened(self) -> Journal:
        if self._journal is None:
            raise NotReadyError("the results are still being opened", code="loading")
        return self._journal

    async def use(self, function: Callable[[Any], T]) -> T:
        """What the function gets of the store. Raises NotReadyError while it is not open, StoreUnavailableError."""
        with _translated():
            return await self._opened().read(function)

    def _on_failure(self, failure: StoreError | None) -> None:
        self.failure = failure
        if failure is None:
            _log.warning("results: the store works again, all is written")
        else:
            _log.error("results: nothing can be written (%s); no job is accepted, running ones go on", failure)

    def _is_expired(self, row: JobRow) -> bool:
        return row.expires is not None and row.expires <= self._wall_clock()

    def _job_of(self, row: JobRow, request: Mapping[str, Any]) -> Job:
        key, body = row.idempotency_key, row.body_digest
        job = Job(
            row.seq_id,
            model=request["model"],
            num_outputs=request["num_outputs"],
            owner=row.owner,
            stream_interval=request["stream_interval"],
            created=row.created,
            attempt=row.num_attempts,
            idempotency_key=None if key is None or body is None else IdempotencyKey(key, body),
            ttl_s=request.get("ttl_s"),
        )
        job.num_prompt_tokens = len(request["prompt_token_ids"])
        if (attachment := self._attachment(request)) is not None:
            job.attach(attachment)
        return job

    def _attachment(self, request: Mapping[str, Any]) -> Attachment | None:
        try:
            return self._kinds[request["kind"]].attachment(request["attachment"])
        except (KeyError, TypeError, ValueError) as exc:  # another version wrote it, in a form of its own
            _log.warning("results: what the API kept with a job cannot be read (%r)", exc)
            return None

    def _read_back(self, rows: Iterable[JobRow], segments: Callable[[int], Iterable[bytes]]) -> list[UnfinishedJob]:
        """Unfinished jobs with their events."""
        begun = {row.num: self._begun(row) for row in rows}
        num_damaged = 0
        first = min((each.row.first_segment for each in begun.values()), default=None)
        for body in () if first is None else segments(first):
            try:
                segment = load_segment(body)
            except ValueError:
                num_damaged += 1
                continue
            time_of = self._translation(segment)
            for num, event in segment.events:
                if num in begun:
                    begun[num].take(event, time_of, written=time_of(segment.monotonic))
                else:
                    self._last_deleted = max(self._last_deleted, num)
        if num_damaged:
            _log.error("results: %d damaged segments; the jobs in them may go on with less than they had", num_damaged)
        return [each.unfinished(now=self._clock()) for each in begun.values()]

    def _translation(self, segment: Segment) -> Callable[[float], float]:
        """From the clock of the process that wrote a segment to this one's; never into the future."""
        now = self._clock()
        shift = segment.wall - segment.monotonic - (self._wall_clock() - now)
        return lambda time: min(time + shift, now)

    def _begun(self, row: JobRow) -> BegunJob:
        arrival_time = self._clock() - max(0.0, self._wall_clock() - row.created)
        try:
            text, seal = self._text(row, "request")
        except DamagedError:
            assert self._sealing is not None
            request = {**_DAMAGED_REQUEST, "ttl_s": self.limits.ttl}
            seal = self._sealing.new_seal(row.owner, row.seq_id)  # for its end
            return BegunJob(row, self._job_of(row, request), request, arrival_time, seal=seal, is_damaged=True)
        request = json.loads(text)
        return BegunJob(row, self._job_of(row, request), request, arrival_time, seal=seal)


def _dumped(
    request: KeptRequest, job: Job, handle: "SubmittedRequest", *, user: str, fingerprint: str, ttl_s: float
) -> str:
    """What is needed to go on with a job, as its row has it."""
    stored = {
        "kind": request.kind,
        "body": request.body,
        "user": user,
        "fingerprint": fingerprint,
        "attachment": request.attachment,
        "webhook": request.webhook,
        "prompt_token_ids": handle.prompt_token_ids,
        "seed": handle.seed,
        "model": job.model,
        "num_outputs": len(job.outputs),
        "stream_interval": job.stream_interval,
        "ttl_s": ttl_s,
    }
    return json.dumps(stored, separators=(",", ":"))


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except StoreError as exc:
        raise _unavailable(exc) from exc


def _unavailable(exc: StoreError) -> StoreUnavailableError:
    return StoreUnavailableError(f"results cannot be kept now ({exc}); ask for a stream, or try again later")
