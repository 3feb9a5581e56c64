"""Journal: writes what the engine says of kept jobs, and only then tells it.

So an event that any reader has seen is on disk. The event loop puts entries into a queue and never waits for the disk;
one thread takes all that have come since its last commit, writes them in one transaction and has the loop tell them.
A step's events are one row, however many they are. While the store fails, no job is accepted and running ones go on;
what could not be written is tried again, so the store never lacks an event that comes before one that it has. In a
shared store nothing of that is told before it is written, for another server may have gone on with the job.
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
from ...jobs.job import Job
from .records import Changes, Ending, Event, JobRow, dump_result, dump_segment, event_of
from .sealing import Seal
from .store import Store, StoreError

_log = logging.getLogger("splitfuse.results")
_SWEEP_S = 5.0
_SWEPT_JOBS = 200
_RETRY_S = 1.0
T = TypeVar("T")
Done = Callable[[BaseException | None], None]


@dataclass(slots=True)
class KeptJob:
    """A job that is on disk, or is being written there. The journal's thread alone writes to `deltas`, `num_left`."""

    num: int
    job: Job
    num_left: int  # outputs that have not ended on disk
    ttl_s: float
    webhook: str | None = None  # whom its end is told
    deltas: list[OutputDelta] = field(default_factory=list)
    seal: Seal | None = None  # what encrypts it, where the store is encrypted

    def stored(self, name: str, text: str) -> str:
        """A text of this name as its row has it."""
        return text if self.seal is None else self.seal.seal_text(name, text)


@dataclass(frozen=True, slots=True)
class _Change:
    """Fields as in `Changes`. `done` is told whether it was written."""

    done: Done = lambda _: None
    accepted: Sequence[JobRow] = ()
    begun: Sequence[int] = ()
    deleted: Sequence[str] = ()
    renewed: Sequence[tuple[int, str]] = ()


@dataclass(frozen=True, slots=True)
class _Call:
    run: Callable[[Store], None]


@dataclass(frozen=True, slots=True)
class _Suspension:
    """Let a job's readers go, after all that has come of it."""

    kept: KeptJob


class _Probe:
    """Find out whether the store can be written."""


class _Stop:
    """The last entry."""


_Told = tuple[KeptJob, int, Event]  # a job's event, and its number among those of the job
_Entry = tuple[KeptJob, OutputDelta] | _Suspension | _Change | _Call | _Probe | _Stop


class Journal:
    """One writer thread over one store. All but `close` is called on the event loop."""

    def __init__(
        self,
        store: Store,
        *,
        on_failure: Callable[[StoreError | None], None],
        wall_clock: Callable[[], float],
        is_shared: bool = False,
        last_job: int = 0,
    ) -> None:
        """`on_failure` is called on the loop when commits begin to fail, and with None when they work again.
        `last_job`: new jobs get larger numbers.
        """
        self._store = store
        self._is_shared = is_shared
        self._untold: list[_Entry] = []
        self._on_failure = on_failure
        self._failure: StoreError | None = None
        self._wall_clock = wall_clock
        self._loop = asyncio.get_running_loop()
        self._entries: queue.SimpleQueue[_Entry] = queue.SimpleQueue()
        num_jobs, num_segments = store.last_numbers()
        self._next_job, self._next_segment = max(num_jobs, last_job) + 1, num_segments + 1
        self._unwritten = Changes()
        self._unwritten_events: list[_Told] = []
        self._swept_at = float("-inf")
        self._sweep_interval_s = _SWEEP_S  # less while there is more to sweep than one transaction should hold
        self._thread = threading.Thread(target=self._run, name="splitfuse-journal", daemon=True)
        self._thread.start()

    # On the event loop.

    @property
    def next_segment(self) -> int:
        """No earlier segment has events of a job that is accepted now."""
        return self._next_segment

    def new_number(self) -> int:
        """The number of a job that is to be accepted."""
        number, self._next_job = self._next_job, self._next_job + 1
        return number

    async def accept(self, row: JobRow) -> None:
        """Return when the job is on disk. Raises StoreError."""
        await self._written(accepted=[row])

    async def begin(self, nums: list[int]) -> None:
        """Note that this process runs these jobs from now on. Raises StoreError."""
        await self._written(begun=nums)

    def renew(self, num: int, request: str) -> None:
        """Write this request of a job before anything that comes later."""
        self._entries.put(_Change(renewed=[(num, request)]))

    async def delete(self, seq_id: str) -> None:
        """Return when the job is gone from the disk. Raises StoreError."""
        await self._written(deleted=[seq_id])

    def sink(self, kept: KeptJob) -> Callable[[OutputDelta], None]:
        """Where the engine's deltas of this job go."""
        put = self._entries.put
        # What the engine had when it died has not ended: another process goes on with it.
        return lambda delta: put(_Suspension(kept) if isinstance(delta.error, EngineDeadError) else (kept, delta))

    async def read(self, function: Callable[[Store], T]) -> T:
        """What the function gets from the store, after all that has come before has been written. Raises StoreError."""
        future: Future[T] = Future()

        def run(store: Store) -> None:
            if not future.set_running_or_notify_cancel():  # else it could be cancelled before it has a result
                return
            try:
                future.set_result(function(store))
            except BaseException as exc:
                future.set_exception(exc)
                self._entries.put(_Probe())

        self._entries.put(_Call(run))
        return await asyncio.wrap_future(future)

    async def close(self, *, has_crashed: bool = False) -> None:
        """Write what has come, note how the process ends, and let go of the store."""
        with contextlib.suppress(StoreError):
            await self.read(lambda store: store.end_process(has_crashed=has_crashed))
        self._entries.put(_Stop())
        await asyncio.to_thread(self._thread.join)

    async def _written(self, **changes: Any) -> None:
        future = self._loop.create_future()

        def done(exc: BaseException | None) -> None:
            if future.done():
                return
            if exc is None:
                future.set_result(None)
            else:
                future.set_exception(exc)

        self._entries.put(_Change(done, **changes))
        await future

    # In the writer's thread.

    def _run(self) -> None:
        is_open = True
        while is_open:
            entries = list(self._taken())
            calls = [entry for entry in entries if isinstance(entry, _Call)]
            is_open = not any(isinstance(entry, _Stop) for entry in entries)
            failure = self._commit(entries)
            self._failure, was_failing = failure, self._failure is not None
            # The loop may be closed already: then no reader is left.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._tell, self._to_tell(entries), failure, was_failing)
            for call in calls:
                call.run(self._store)
            self._sweep()
        self._store.close()

    def _taken(self) -> Iterator[_Entry]:
        """All entries that are there; waits for the first, or until it is time to try again or to sweep."""
        with contextlib.suppress(queue.Empty):
            yield self._entries.get(timeout=_RETRY_S if self._failure else self._sweep_interval_s)
            while True:
                yield self._entries.get_nowait()

    def _commit(self, entries: list[_Entry]) -> StoreError | None:
        """Write these entries and what could not be written before them, all or nothing."""
        unwritten, events, accepted = self._unwritten, self._unwritten_events, list[JobRow]()
        probes = self._failure is not None  # else an idle server would forget that its disk is full
        for entry in entries:
            match entry:
                case _Probe():
                    probes = True
                case _Change():
                    accepted += entry.accepted
                    unwritten.begun += entry.begun
                    unwritten.deleted += entry.deleted
                    unwritten.renewed += entry.renewed
                case (KeptJob() as kept, OutputDelta() as delta):
                    try:
                        events.append((kept, len(kept.deltas), event_of(delta)))
                        if (ending := self._ending(kept, delta)) is not None:
                            unwritten.endings.append(ending)
                    except Exception:  # a bug of ours: the events of other jobs are written
                        _log.exception("results: an event of job %s… cannot be written", kept.job.seq_id[:8])
        segment = None
        try:
            if events:
                body = dump_segment(_packed(events), wall=self._wall_clock(), monotonic=time.monotonic())
                segment = (self._next_segment, body)
            self._store.commit(replace(unwritten, accepted=accepted, segment=segment, probes=probes))
        except Exception as exc:  # a bug of ours must not end this thread, without which nothing is told
            if not isinstance(exc, StoreError):
                _log.exception("results: a transaction failed")
                exc = StoreError(f"{type(exc).__name__} in a transaction")
            lost = {row.num for row in accepted}  # their clients are told so
            self._unwritten_events = [event for event in events if event[0].num not in lost]
            return exc
        self._next_segment += segment is not None
        self._unwritten, self._unwritten_events = Changes(), []
        return None

    def _to_tell(self, entries: list[_Entry]) -> list[_Entry]:
        """What may be told now; the rest of it when it is written."""
        if not self._is_shared:
            return entries
        if self._failure is None:
            told, self._untold = self._untold + entries, []
            return told
        self._untold += [entry for entry in entries if isinstance(entry, tuple)]
        return [entry for entry in entries if not isinstance(entry, tuple)]

    def _ending(self, kept: KeptJob, delta: OutputDelta) -> Ending | None:
        """The end of a job, if this is its last delta."""
        kept.deltas.append(delta)
        kept.num_left -= delta.finish_reason is not None
        if kept.num_left:
            return None
        reasons = {each.finish_reason for each in kept.deltas}
        status = "failed" if "error" in reasons else "cancelled" if "abort" in reasons else "completed"
        now = self._wall_clock()
        result = kept.stored("result", dump_result(kept.deltas))
        return Ending(kept.num, status, now, now + kept.ttl_s, result, kept.webhook)

    def _sweep(self) -> None:
        if time.monotonic() - self._swept_at < self._sweep_interval_s:
            return
        num_swept = 0
        try:
            num_swept = self._store.sweep(self._wall_clock(), max_jobs=_SWEPT_JOBS)
        except StoreError as exc:
            _log.warning("results: what has expired cannot be deleted: %s", exc)
        self._swept_at = time.monotonic()
        self._sweep_interval_s = _SWEEP_S if num_swept < _SWEPT_JOBS else _SWEEP_S / 50

    # On the event loop again.

    def _tell(self, entries: list[_Entry], failure: StoreError | None, was_failing: bool) -> None:
        if (failure is not None) != was_failing:
            self._on_failure(failure)
        for entry in entries:
            try:
                match entry:
                    case _Change():
                        entry.done(failure)
                    case (KeptJob() as kept, OutputDelta() as delta):
                        kept.job.sink(delta)
                    case _Suspension(kept):
                        kept.job.suspend()
            except Exception:  # concerns one job; the others are told what is theirs
                _log.exception("results: a job cannot be told what was written of it")


def _packed(events: Sequence[_Told]) -> list[tuple[int, Event | str]]:
    """What a segment holds of each event; of an encrypted job all together are one item."""
    packed: list[tuple[int, Event | str]] = []
    to_seal: dict[int, tuple[Seal, int, list[Event]]] = {}
    for kept, number, event in events:
        if kept.seal is None:
            packed.append((kept.num, event))
        else:
            to_seal.setdefault(kept.num, (kept.seal, number, []))[2].append(event)
    packed += [(num, seal.seal_events(first, sealed)) for num, (seal, first, sealed) in to_seal.items()]
    return packed
