"""Journal: writes the engine's events of kept jobs, and delivers each only after it is written.

So every event that a reader has seen is on disk. The event loop puts entries into a queue and never waits for the disk.
One thread takes all entries since its last commit, writes them in one transaction, and has the loop deliver them. A
step's events are one row, however many there are. While the store fails, no job is accepted, but running jobs continue;
failed writes are retried, so the store never lacks an event before one that it has. With a shared store nothing is
delivered while writing fails, because another server may have taken the job over.
"""

import asyncio
import contextlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from ....engine.core.outputs import OutputDelta
from ....engine.errors import EngineDeadError
from ....engine.serving.request_output import CompletionOutput
from ...jobs.job import Job
from .records import Changes, Ending, Event, JobRow, dump_result, dump_segment, event_of
from .store import Store, StoreError

_log = logging.getLogger("splitfuse.results")
_SWEEP_S = 5.0
_SWEPT_JOBS = 200
_RETRY_S = 1.0
T = TypeVar("T")
Done = Callable[[BaseException | None], None]


@dataclass(slots=True)
class StoredJob:
    """A job on disk, or one being written there. Only the journal's thread writes `deltas` and `num_left`."""

    num: int
    job: Job
    num_left: int  # outputs whose end is not on disk yet
    ttl_s: float
    deltas: list[OutputDelta] = field(default_factory=list)
    early: "list[_Entry] | None" = None  # entries before its row; None once the row is on the way to disk


@dataclass(frozen=True, slots=True)
class _Change:
    """Fields of `Changes`. `done` is called with None once they are written, or with the error."""

    done: Done = lambda _: None
    accepted: Sequence[JobRow] = ()
    begun: Sequence[int] = ()
    deleted: Sequence[str] = ()
    renewed: Sequence[tuple[int, str]] = ()
    early: "Sequence[_Entry]" = ()  # of accepted jobs, which have them or are not there


@dataclass(frozen=True, slots=True)
class _Call:
    run: Callable[[Store], None]


@dataclass(frozen=True, slots=True)
class _Suspension:
    """Releases a job's readers after all of its earlier entries."""

    kept: StoredJob


class _Probe:
    """Request to find out whether the store can be written."""


class _Stop:
    """Last entry of the queue."""


_Entry = tuple[StoredJob, OutputDelta] | _Suspension | _Change | _Call | _Probe | _Stop


class Journal:
    """One writer thread over one store. All methods but `close` are called on the event loop."""

    def __init__(
        self,
        store: Store,
        *,
        on_failure: Callable[[StoreError | None], None],
        wall_clock: Callable[[], float],
        is_shared: bool = False,
        last_job: int = 0,
    ) -> None:
        """Start the thread.

        `on_failure` is called on the loop when commits begin to fail, and with None when they work again. New jobs get
        numbers above `last_job`.
        """
        self._store = store
        self._is_shared = is_shared
        self._undelivered: list[_Entry] = []
        self._on_failure = on_failure
        self._failure: StoreError | None = None
        self._behind_since: float | None = None  # written by the journal's thread
        self._wall_clock = wall_clock
        self._loop = asyncio.get_running_loop()
        self._entries: queue.SimpleQueue[_Entry] = queue.SimpleQueue()
        num_jobs, num_segments = store.last_numbers()
        self._next_job, self._next_segment = max(num_jobs, last_job) + 1, num_segments + 1
        self._unwritten = Changes()
        self._unwritten_events: list[tuple[int, Event]] = []  # with their jobs' numbers
        self._swept_at = float("-inf")
        self._sweep_interval_s = _SWEEP_S  # shorter while there is more to sweep than one transaction should hold
        self._thread = threading.Thread(target=self._run, name="splitfuse-journal", daemon=True)
        self._thread.start()

    # Methods of the event loop.

    @property
    def lag_s(self) -> float:
        """Age of the oldest entry that is taken and not written."""
        behind_since = self._behind_since
        return 0.0 if behind_since is None else time.monotonic() - behind_since

    @property
    def next_segment(self) -> int:
        """Lowest segment that can contain events of a job that is accepted now."""
        return self._next_segment

    def new_number(self) -> int:
        """Return the number for a job about to be accepted."""
        number, self._next_job = self._next_job, self._next_job + 1
        return number

    async def accept(self, row: JobRow, kept: StoredJob) -> None:
        """Write the job with its early deltas; returns once it is on disk. Raises StoreError."""
        early, kept.early = kept.early or (), None
        await self._write_changes(accepted=[row], early=early)

    async def begin(self, nums: list[int]) -> None:
        """Note that this process runs these jobs from now on. Raises StoreError."""
        await self._write_changes(begun=nums)

    def renew(self, num: int, request: str) -> None:
        """Write this request of a job before anything that comes later."""
        self._entries.put(_Change(renewed=[(num, request)]))

    async def delete(self, seq_id: str) -> None:
        """Delete the job; returns once it is gone from the disk. Raises StoreError."""
        await self._write_changes(deleted=[seq_id])

    def sink(self, kept: StoredJob) -> Callable[[OutputDelta], None]:
        """Return the function that takes the engine's deltas of this job."""
        put = self._entries.put
        # A job that runs when the engine dies has not ended: another process resumes it.
        return lambda delta: (put if kept.early is None else kept.early.append)(
            _Suspension(kept) if isinstance(delta.error, EngineDeadError) else (kept, delta)
        )

    async def read(self, function: Callable[[Store], T]) -> T:
        """Return the function's result on the store, after all earlier entries are written. Raises StoreError."""
        future: Future[T] = Future()

        def run(store: Store) -> None:
            if not future.set_running_or_notify_cancel():  # otherwise it could be cancelled while the function runs
                return
            try:
                future.set_result(function(store))
            except BaseException as exc:
                future.set_exception(exc)
                self._entries.put(_Probe())

        self._entries.put(_Call(run))
        return await asyncio.wrap_future(future)

    async def close(self, *, has_crashed: bool = False) -> None:
        """Write the remaining entries, note how the process ends, and close the store."""
        with contextlib.suppress(StoreError):
            await self.read(lambda store: store.end_process(has_crashed=has_crashed))
        self._entries.put(_Stop())
        await asyncio.to_thread(self._thread.join)

    async def _write_changes(self, **changes: Any) -> None:
        future = self._loop.create_future()

        def done(exc: BaseException | None) -> None:
            if not future.done():
                future.set_result(exc)

        self._entries.put(_Change(done, **changes))
        if (exc := await future) is not None:
            raise exc

    # Methods of the writer's thread.

    def _run(self) -> None:
        while self._turn(list(self._take_entries())):
            pass
        self._store.close()

    def _turn(self, entries: list[_Entry]) -> bool:
        """Write entries and have the loop deliver them. Returns False if they end the thread."""
        entries = [item for entry in entries for item in (entry, *getattr(entry, "early", ()))]
        calls = [entry for entry in entries if isinstance(entry, _Call)]
        self._behind_since = self._behind_since or (time.monotonic() if entries else None)
        failure = self._commit(entries)
        self._behind_since = None if failure is None else self._behind_since
        self._failure, was_failing = failure, self._failure is not None
        # A loop that is already closed has no readers left.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._deliver, self._deliverable(entries), failure, was_failing)
        for call in calls:
            call.run(self._store)
        self._sweep()
        return not any(isinstance(entry, _Stop) for entry in entries)

    def _take_entries(self) -> Iterator[_Entry]:
        """Yield all queued entries. Waits for the first one, or until a retry, a sweep or a check is due."""
        with contextlib.suppress(queue.Empty):
            yield self._entries.get(timeout=min(_RETRY_S, self._sweep_interval_s))
            while True:
                yield self._entries.get_nowait()

    def _commit(self, entries: list[_Entry]) -> StoreError | None:
        """Write these entries and the earlier unwritten ones, all or nothing."""
        unwritten, events, accepted = self._unwritten, self._unwritten_events, list[JobRow]()
        probes = self._failure is not None  # otherwise an idle server would forget that its disk is full
        for entry in entries:
            match entry:
                case _Probe():
                    probes = True
                case _Change():
                    accepted += entry.accepted
                    unwritten.begun += entry.begun
                    unwritten.deleted += entry.deleted
                    unwritten.renewed += entry.renewed
                case (StoredJob() as kept, OutputDelta() as delta):
                    try:
                        events.append((kept.num, event_of(delta)))
                        if (ending := self._ending(kept, delta)) is not None:
                            unwritten.endings.append(ending)
                    except Exception:  # a bug of ours; other jobs' events are still written
                        _log.exception("results: an event of job %s… cannot be written", kept.job.seq_id[:8])
        segment = None
        try:
            if events:
                body = dump_segment(events, wall=self._wall_clock(), monotonic=time.monotonic())
                segment = (self._next_segment, body)
            self._store.commit(replace(unwritten, accepted=accepted, segment=segment, probes=probes))
        except Exception as exc:  # a bug of ours must not end this thread: nothing could be delivered without it
            if not isinstance(exc, StoreError):
                _log.exception("results: a transaction failed")
                exc = StoreError(f"{type(exc).__name__} in a transaction")
            refused_nums = {row.num for row in accepted}  # their clients get the error
            self._unwritten_events = [(num, event) for num, event in events if num not in refused_nums]
            return exc
        self._next_segment += segment is not None
        self._unwritten, self._unwritten_events = Changes(), []
        return None

    def _deliverable(self, entries: list[_Entry]) -> list[_Entry]:
        """Return the entries to deliver now; the others are delivered once they are written."""
        if not self._is_shared:
            return entries
        if self._failure is None:
            deliverable, self._undelivered = self._undelivered + entries, []
            return deliverable
        self._undelivered += [entry for entry in entries if isinstance(entry, tuple)]
        return [entry for entry in entries if not isinstance(entry, tuple)]

    def _ending(self, kept: StoredJob, delta: OutputDelta) -> Ending | None:
        """Return the end of a job if this is its last delta."""
        kept.deltas.append(delta)
        kept.num_left -= delta.finish_reason is not None
        if kept.num_left:
            return None
        reasons = {event.finish_reason for event in kept.deltas}
        status = "failed" if "error" in reasons else "cancelled" if "abort" in reasons else "completed"
        now = self._wall_clock()
        result = dump_result(kept.deltas, _more(kept, is_complete=status == "completed"))
        return Ending(kept.num, status, now, now + kept.ttl_s, result, kept.job.attempt)

    def _sweep(self) -> None:
        if time.monotonic() - self._swept_at < self._sweep_interval_s:
            return
        num_swept = 0
        try:
            num_swept = self._store.sweep(self._wall_clock(), max_jobs=_SWEPT_JOBS)
        except StoreError as exc:
            if self._failure is None:
                _log.warning("results: expired results cannot be deleted: %s", exc)
        except Exception:  # a bug of ours: without this thread nothing would be written
            _log.exception("results: expired results cannot be deleted")
        self._swept_at = time.monotonic()
        self._sweep_interval_s = _SWEEP_S if num_swept < _SWEPT_JOBS else _SWEEP_S / 50

    # Methods of the event loop again.

    def _deliver(self, entries: list[_Entry], failure: StoreError | None, was_failing: bool) -> None:
        if (failure is not None) != was_failing:
            self._on_failure(failure)
        for entry in entries:
            try:
                match entry:
                    case _Change():
                        entry.done(failure)
                    case (StoredJob() as kept, OutputDelta() as delta):
                        kept.job.sink(delta)
                    case _Suspension(kept):
                        kept.job.suspend()
            except Exception:  # affects one job; deliver the other jobs' entries
                _log.exception("results: delivering written events to a job failed")


def _more(kept: StoredJob, *, is_complete: bool) -> dict[str, Any]:
    """Return an answer's stored extras: the versions of its weights, and its receipt."""
    job = kept.job
    more: dict[str, Any] = {}
    if job.weights:
        more["weights"] = job.weights
    if job.receipt is not None and is_complete:
        outputs = [CompletionOutput(index) for index in range(len(job.outputs))]
        for delta in kept.deltas:  # the job itself gets the last one once it is written
            outputs[delta.index].add(delta)
        more["receipt"] = job.receipt.of(job, outputs)
    return more
