"""JournalWorld: the durable results' real classes over SQLite in memory. Each write is an action; a crash is another.

The journal's thread and the event loop stand still: "write" is one turn of the thread, "deliver" one callback that the
thread has posted. A crash drops everything but the tables; "start" takes up what they hold. The engine is a null model:
its token is a function of job, output and position.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

from splitfuse.engine.core.outputs import KnownOutput, OutputDelta
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.serving.submitted_request import Resumed
from splitfuse.server.http.errors import StoreUnavailableError
from splitfuse.server.jobs.idempotency import IdempotencyKey
from splitfuse.server.jobs.job import Job
from splitfuse.server.jobs.job_index import JobIndex, ResultLimits
from splitfuse.server.jobs.result_store import ResultStore
from splitfuse.server.jobs.saved_request import SavedRequest
from splitfuse.server.results.durable import durable_backend, journal
from splitfuse.server.results.durable.durable_backend import DurableBackend
from splitfuse.server.results.durable.journal import Journal
from splitfuse.server.results.durable.records import JobRow, load_segment
from splitfuse.server.results.durable.resumption import Resumption
from splitfuse.server.results.durable.sql import Session
from splitfuse.server.results.durable.sqlite_store import SqliteStore
from splitfuse.server.results.durable.store import JOB_COLUMNS, StoreError
from splitfuse.server.results.durable.stored_jobs import StoredJobs
from splitfuse.server.service import Service

TTL = 60.0
TABLES = ("jobs", "segments", "meta")
ACCEPTED, REFUSED, DELETING, DELETED = "accepted", "refused", "deleting", "deleted"


@dataclass(frozen=True)
class Request:
    """Request with outputs of these lengths. A fork begins with `num_known` tokens of its only output."""

    lengths: tuple[int, ...]
    num_known: int = 0
    has_key: bool = False


@dataclass(frozen=True)
class JournalSettings:
    """Settings of one world. `events`: how often each may happen: crash, close (a proper end), full (a failing commit),
    delete, sweep, tick (results expire).
    """

    requests: Mapping[str, Request]
    events: Mapping[str, int] = field(default_factory=dict)
    table = "JOURNALS"

    def open(self) -> Any:
        """Return the world, and the memory of its states."""
        world = JournalWorld(self)
        return world, Replay(world)


_SHORT, _LONGER = Request((1,)), Request((2,))
JOURNALS = {
    "one": JournalSettings({"a": _LONGER}, {"crash": 2}),
    "full": JournalSettings({"a": _LONGER}, {"crash": 1, "full": 1}),
    "deletion": JournalSettings({"a": _LONGER}, {"crash": 1, "delete": 1, "sweep": 1}),
    "outputs": JournalSettings({"a": Request((1, 2))}, {"crash": 1}),
    "fork": JournalSettings({"a": Request((3,), num_known=2)}, {"crash": 1, "full": 1, "sweep": 1}),
    "keys": JournalSettings({"a": Request((1,), has_key=True)}, {"crash": 1, "full": 1}),
    "two": JournalSettings({"a": _SHORT, "b": _LONGER}, {"crash": 1, "sweep": 1}),
    "ends": JournalSettings({"a": _SHORT, "b": _SHORT}, {"close": 1, "crash": 1, "sweep": 1}),
    "suspects": JournalSettings({"a": _SHORT}, {"crash": 3}),
    "expiry": JournalSettings({"a": _SHORT, "b": _SHORT}, {"crash": 1, "tick": 1, "sweep": 1}),
}


class Death(BaseException):
    """End of the process in the middle of an action."""


class DyingStore(SqliteStore):
    """Store on a disk that may be full, of a process that may die after some transactions."""

    is_full = False
    num_left = -1  # transactions until the death

    @contextmanager
    def _changing(self) -> Iterator[Session]:
        if self.is_full:
            raise StoreError("the disk is full")
        if not self.num_left:
            raise Death
        self.num_left -= 1
        with super()._changing() as session:
            yield session

    def all(self, columns: str, table: str) -> list[tuple[Any, ...]]:
        """Return rows in their order."""
        return list(self._db.execute(f"SELECT {columns} FROM {table} ORDER BY 1"))

    def fill(self, tables: list[list[tuple[Any, ...]]]) -> None:
        """Have these rows and no others."""
        for name, rows in zip(TABLES, tables, strict=True):
            self._db.execute(f"DELETE FROM {name}")
            for row in rows:
                self._db.execute(f"INSERT INTO {name} VALUES ({', '.join('?' * len(row))})", row)


class StillJournal(Journal):
    """Journal that does nothing by itself. `begun`: jobs of an earlier process that this one takes up."""

    begun: frozenset[int] = frozenset()

    def _sweep(self) -> None:
        return

    def turn(self, *, is_sweep: bool = False) -> None:
        """Let the thread take what waits, or sweep."""
        if is_sweep:
            self._swept_at = float("-inf")
            super()._sweep()
            return
        waiting = cast(Entries, self._entries)
        entries = [*waiting]
        waiting.clear()
        self.begun |= {num for entry in entries for num in getattr(entry, "begun", ())}
        self._turn(entries)


class Entries(deque[Any]):
    """Queue of the journal. `beside`: a turn of the thread right after the next entry."""

    beside: Callable[[], None] | None = None

    def put(self, entry: Any) -> None:
        self.append(entry)
        if self.beside is not None:
            turn, self.beside = self.beside, None
            turn()


@dataclass(eq=False)
class Task:
    """Coroutine, and the future that it awaits."""

    name: str
    run: Coroutine[Any, Any, Any]
    future: Any = None
    num_waits: int = 0


class Loop:
    """Event loop that runs what it is told to. Callbacks of other threads wait in `posted`."""

    def __init__(self) -> None:
        self.posted: deque[tuple[Any, Any]] = deque()
        self._ready: deque[tuple[Any, Any]] = deque()
        self.tasks: list[Task] = []

    def create_future(self) -> Any:
        return asyncio.Future(loop=cast(Any, self))

    def call_soon(self, function: Any, *args: Any, context: Any = None) -> None:
        self._ready.append((function, args))

    def call_soon_threadsafe(self, function: Any, *args: Any, context: Any = None) -> None:
        self.posted.append((function, args))

    def run_in_executor(self, _executor: Any, function: Any, *args: Any) -> Any:
        future = self.create_future()
        future.set_result(function(*args))
        return future

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def run(self) -> None:
        """Run all that does not wait."""
        is_busy = True
        while is_busy:
            is_busy = False
            while self._ready:
                function, args = self._ready.popleft()
                function(*args)
            for task in [task for task in self.tasks if task.future is None or task.future.done()]:
                is_busy = True
                try:
                    task.future, task.num_waits = task.run.send(None), task.num_waits + 1
                except StopIteration:
                    self.tasks.remove(task)


class NullEngine:
    """Engine whose running jobs wait for their next token."""

    variants = ()
    has_died = False

    def __init__(self, world: "JournalWorld") -> None:
        self._world = world
        self.running: dict[str, list[int | None]] = {}  # tokens of each output of a job; None: it has ended
        self._sinks: dict[str, Any] = {}

    def fingerprint_of(self, adapter: Any) -> str:
        return "weights"

    async def submit(self, prompt: Any, params: Any, sink: Any, **more: Any) -> Any:
        seq_id, resumed = more["request_id"], more["resumed"]
        request = self._world.request_of(seq_id)
        outputs = [KnownOutput() for _ in request.lengths] if resumed is None else resumed.outputs
        assert seq_id not in self.running, "a job runs twice"
        assert len(outputs[0].token_ids) >= request.num_known, "a fork has lost its first tokens"
        if not all(one.has_ended for one in outputs):
            self.running[seq_id] = [None if one.has_ended else len(one.token_ids) for one in outputs]
        self._sinks[seq_id] = sink
        return SimpleNamespace(prompt_token_ids=[1], seed=1, parent=None, started=True)

    def step(self, seq_id: str, index: int) -> None:
        """Sample an output's next token."""
        number = self.running[seq_id][index]
        assert number is not None
        is_last = number + 1 == self._world.request_of(seq_id).lengths[index]
        self._give(seq_id, index, (self._world.right(seq_id, index)[number],), "length" if is_last else None)

    def abort(self, seq_id: str) -> None:
        for index, number in enumerate(self.running.get(seq_id, ())):
            if number is not None:
                self._give(seq_id, index, (), "abort")

    def _give(self, seq_id: str, index: int, token_ids: tuple[int, ...], reason: str | None) -> None:
        numbers = self.running[seq_id]
        number = numbers[index]
        assert number is not None
        numbers[index] = number + len(token_ids) if reason is None else None
        if numbers == [None] * len(numbers):
            del self.running[seq_id]
        text = "".join(map(chr, token_ids))
        self._sinks[seq_id](OutputDelta(seq_id, index, text, token_ids, finish_reason=reason))


KIND: Any = SimpleNamespace(attachment=lambda stored: None, params=lambda *_: SamplingParams())  # of all requests


class Process:
    """One life of the server."""

    def __init__(self, world: "JournalWorld") -> None:
        limits = ResultLimits(ttl=TTL, max_results=100, max_bytes=2**30)
        index = JobIndex(limits, clock=lambda: world.facts.now)
        self.stored = world.stored()
        self.loop, self.engine = Loop(), NullEngine(world)
        self.backend = DurableBackend(index, self.stored, open_store=lambda: world.store)
        self.results = ResultStore(index, self.backend)
        self.is_ready = False
        self.journal: StillJournal  # once it is open
        self.entries = Entries()

    async def open(self) -> None:
        """Open the results, and begin what an earlier process left."""
        still = SimpleNamespace(start=lambda: None, join=lambda: None)
        stand_in = SimpleNamespace(Thread=lambda **_: still)
        with patch.object(durable_backend, "Journal", StillJournal), patch.object(journal, "threading", stand_in):
            await self.backend.open()
        self.journal = cast(StillJournal, self.backend._journal)
        self.journal._entries = cast(Any, self.entries)
        settings, engine = cast(Any, SimpleNamespace()), cast(Any, self.engine)
        try:
            await Resumption(self.backend, engine, self.stored.kinds, settings).run()
        except StoreUnavailableError as exc:  # a server whose start fails ends
            raise Death from exc
        self.is_ready = True


@dataclass
class Facts:
    """What the world knows beside the disk."""

    events_left: dict[str, int]
    num_tries: Counter[str] = field(default_factory=Counter)
    replies: dict[str, str] = field(default_factory=dict)  # to clients, by request
    written: dict[str, list[int]] = field(default_factory=dict)  # numbers of tokens that readers have had, by job
    expired: set[str] = field(default_factory=set)
    names: dict[int, str] = field(default_factory=dict)  # of numbers of jobs
    crashes: Counter[str] = field(default_factory=Counter)  # of processes that ran a job
    num_crashes: int = 0
    now: float = 1000.0


Base = tuple[list[list[tuple[Any, ...]]], Facts]


class JournalWorld:
    """World of a few requests. Every change is an action."""

    def __init__(self, settings: JournalSettings) -> None:
        self.settings = settings
        self.store = DyingStore(None)
        self.begin()

    def begin(self, base: "Base | None" = None) -> None:
        """Begin anew, or where a process begins."""
        self.base = base or ([[] for _ in TABLES], Facts(dict(self.settings.events)))
        self.store.fill(self.base[0])
        self.facts = deepcopy(self.base[1])
        self.path: list[str] = []  # since then
        self.process: Process | None = None

    def stored(self) -> StoredJobs:
        def clock() -> float:
            return self.facts.now

        return StoredJobs({"kind": KIND}, ttl=TTL, clock=clock, wall_clock=clock)

    def request_of(self, seq_id: str) -> Request:
        return self.settings.requests[seq_id[0]]

    def right(self, seq_id: str, index: int) -> list[int]:
        """Return the tokens of an output."""
        return [1000 * ord(seq_id[0]) + 100 * index + i for i in range(self.request_of(seq_id).lengths[index])]

    # Actions.

    @property
    def has_work(self) -> bool:
        """True if the first action goes on with work."""
        process = self.process
        return process is None or bool(
            process.loop.posted or process.entries or process.journal._failure or process.engine.running
        )

    def actions(self) -> list[str]:
        """Return all that may happen now. The first goes on with the work, if there is some."""
        process = self.process
        if process is None:
            return ["start"]
        actions = ["deliver"] if process.loop.posted else []
        if process.entries or process.journal._failure:
            actions += ["write", *(["write crash"] if self._may("crash") else [])]
            actions += ["write full"] if self._may("full") else []
        for seq_id, numbers in process.engine.running.items():
            actions += [f"token {seq_id} {i}" for i, number in enumerate(numbers) if number is not None]
        if process.is_ready:
            actions += self._asked(process)
        if self._may("sweep"):
            actions += ["sweep", *(["sweep crash"] if self._may("crash") else [])]
        return actions + [event for event in ("crash", "tick") if self._may(event)]

    def _asked(self, process: Process) -> list[str]:
        """Return what clients may ask for."""
        asking = {task.name for task in process.loop.tasks}
        actions = []
        for name, request in self.settings.requests.items():
            is_new = request.has_key or not self.facts.num_tries[name]
            if is_new and name not in self.facts.replies and name not in asking:
                actions += [f"ask {name}", *([f"ask {name} beside"] if request.num_known else [])]
            if self.facts.replies.get(name) == ACCEPTED and name not in asking and self._may("delete"):
                actions.append(f"delete {name}")
        return actions + (["close"] if self._may("close") and not asking else [])

    def _may(self, event: str) -> bool:
        return self.facts.events_left.get(event, 0) > 0

    def act(self, action: str) -> None:
        """Let an action happen. Raises AssertionError if its results are wrong."""
        self.path.append(action)
        verb, *more = action.split()
        for event in self.facts.events_left.keys() & {verb, *more}:
            self.facts.events_left[event] -= 1
        try:
            getattr(self, f"_{verb}")(*more)
            if self.process is not None:
                self._run(self.process)
        except Death:
            self._crash()
        self.store.num_left, self.store.is_full = -1, False

    def _run(self, process: Process) -> None:
        asyncio._set_running_loop(cast(Any, process.loop))
        try:
            process.loop.run()
        finally:
            asyncio._set_running_loop(None)

    @property
    def live(self) -> Process:
        assert self.process is not None
        return self.process

    def _begin_task(self, name: str, run: Coroutine[Any, Any, Any]) -> None:
        self.live.loop.tasks.append(Task(name, run))

    def _start(self) -> None:
        self.base = [self.store.all("*", name) for name in TABLES], deepcopy(self.facts)
        self.path = ["start"]
        self.process = Process(self)
        self._begin_task("start", self.process.open())

    def _ask(self, name: str, beside: str = "") -> None:
        if beside:
            self.live.entries.beside = self.live.journal.turn
        seq_id = f"{name}{self.facts.num_tries[name]}"
        self.facts.num_tries[name] += 1
        self._begin_task(name, self._generate(self.live, name, seq_id))

    async def _generate(self, process: Process, name: str, seq_id: str) -> None:
        """Submit a job as POST /generate and POST /fork do."""
        request, results = self.settings.requests[name], process.results
        key = IdempotencyKey(name.encode(), b"") if request.has_key else None
        try:
            async with results.idempotent("", key) as earlier:
                if earlier is None:
                    await self._submit(process, request, seq_id, key)
        except StoreUnavailableError:
            self.facts.replies[name] = REFUSED
        else:
            self.facts.replies[name] = ACCEPTED

    async def _submit(self, process: Process, request: Request, seq_id: str, key: IdempotencyKey | None) -> None:
        job = Job(seq_id, model="m", num_outputs=len(request.lengths), created=self.facts.now, idempotency_key=key)
        service: Any = SimpleNamespace(
            state="ready",
            results=process.results,
            engine=process.engine,
            extensions=SimpleNamespace(parts=()),
            receipts=_no_receipts,
        )
        known = tuple(self.right(seq_id, 0)[: request.num_known])
        forked: dict[str, Any] = {
            "resumed": Resumed(1, (KnownOutput(known),), 0.0, is_new=True),
            "first": OutputDelta(seq_id, 0, "", known),
        }
        kept = SavedRequest(kind="kind", body={})
        process.results.add(job)
        try:
            await Service.submit(service, job, [1], SamplingParams(), kept=kept, **(forked if known else {}))
        except BaseException:
            process.engine.abort(seq_id)
            process.results.forget(job)
            raise

    def _delete(self, name: str) -> None:
        self._begin_task(name, self._deleted(self.live, name))

    async def _deleted(self, process: Process, name: str) -> None:
        self.facts.replies[name] = DELETING
        [seq_id] = [row.seq_id for row in self.rows() if row.seq_id[0] == name] or [f"{name}0"]
        job = await process.results.find(seq_id, owner="")
        process.engine.abort(seq_id)
        try:
            await process.results.delete(job)
        except StoreUnavailableError:
            return
        self.facts.replies[name] = DELETED

    def _token(self, seq_id: str, index: str) -> None:
        self.live.engine.step(seq_id, int(index))

    def _write(self, how: str = "") -> None:
        self.store.is_full = how == "full"
        self._turn(how)

    def _sweep(self, how: str = "") -> None:
        self._turn(how, is_sweep=True)
        if not self.store.unfinished():
            assert not self.store.all("num", "segments"), "segments leak"

    def _turn(self, how: str, *, is_sweep: bool = False) -> None:
        """Let the journal's thread write. It may die after its first transaction."""
        self.store.num_left = 1 if how == "crash" else -1
        self.live.journal.turn(is_sweep=is_sweep)
        if how == "crash":
            raise Death

    def _deliver(self) -> None:
        function, args = self.live.loop.posted.popleft()
        function(*args)
        for job in self.live.results.index.of(""):
            if self.live.journal._failure is None:
                self.facts.written[job.seq_id] = [len(output.token_ids) for output in job.outputs]

    def _tick(self) -> None:
        self.facts.now += 2 * TTL
        self.facts.expired |= {row.seq_id for row in self.rows() if row.status is not None}

    def _close(self) -> None:
        self.live.is_ready = False
        self._begin_task("close", self._closed(self.live))

    async def _closed(self, process: Process) -> None:
        await process.backend.close()
        self.process = None

    def _crash(self) -> None:
        for task in self.live.loop.tasks:
            task.run.close()
        begun = self.live.journal.begun - {*self.live.journal._unwritten.begun}
        self.process = None
        self.facts.num_crashes += 1
        if ("is_clean", 1) not in self.store.all("key, value", "meta"):
            rows = [row for row in self.rows() if row.status is None]
            self.facts.crashes.update(row.seq_id for row in rows if row.num_attempts == 1 or row.num in begun)

    # Checks.

    def rows(self) -> list[JobRow]:
        """Return the jobs on disk."""
        return [JobRow(*row) for row in self.store.all(JOB_COLUMNS, "jobs")]

    def check(self) -> None:
        """Check everything that holds between two actions. Raises AssertionError."""
        rows = {row.seq_id: row for row in self.rows()}
        assert len({seq_id[0] for seq_id in rows}) == len(rows), "a job is on disk twice"
        self.facts.names |= {row.num: row.seq_id for row in rows.values()}
        stored = self.stored()
        jobs = {one.row.seq_id: one.kept.job for one in stored.unfinished(self.store.unfinished(), self.store.segments)}
        for seq_id, row in rows.items():
            job = jobs.get(seq_id) or (stored.finished(row) if seq_id not in self.facts.expired else None)
            if job is not None:
                self._check_job(job, row.status)
                numbers = [len(output.token_ids) for output in job.outputs]
                least = self.facts.written.get(seq_id, numbers)
                assert all(a >= b for a, b in zip(numbers, least, strict=True)), "what readers have had is not on disk"
            if self.process is not None and row.status is None:
                assert row.num_crashes == self.facts.crashes[seq_id], "crashes are miscounted"
                assert row.is_running or seq_id not in self.process.engine.running, "the disk knows no runner of a job"
        for name, reply in self.facts.replies.items():
            found = [seq_id for seq_id in rows if seq_id[0] == name]
            is_expired = any(seq_id[0] == name for seq_id in self.facts.expired)
            assert found or reply != ACCEPTED or is_expired, "a job is lost"
            assert not found or reply in (ACCEPTED, DELETING), f"a job is there that was {reply}"
        for job in () if self.process is None else self.process.results.index.of(""):
            self._check_job(job, None)
        if self.process is not None and not self.has_work:
            assert not self.store.unfinished(), "a job never ends"
            assert not self.process.backend._kept, "a job that has ended is held"

    def _check_job(self, job: Job, status: str | None) -> None:
        for output in job.outputs:
            right, found = self.right(job.seq_id, output.index), list(output.token_ids)
            assert found == right[: len(found)], f"{job.seq_id} has {found}, not {right}"
            assert output.finish_reason != "length" or found == right, "an output ends too early"
            logged = [token for event in job.events if event.index == output.index for token in event.token_ids]
            assert logged == found, "the log has other tokens"
        assert status != "completed" or job.status == status, "a result is not whole"
        assert job.status != "failed" or self.facts.num_crashes >= 3, "a job fails"

    # The key of a state.

    def key(self) -> tuple[Any, ...]:
        """Return what matters of the state: neither times nor the numbers of jobs and segments."""
        facts = self.facts
        segments = [(num, load_segment(body).events) for num, body in self.store.all("num, body", "segments")]
        return (
            [(row.seq_id, sum(num >= row.first_segment for num, _ in segments), row.is_running, row.num_attempts,
              row.num_crashes, row.status or "") for row in self.rows()],
            [[(facts.names.get(num, num), event[0], len(event[2])) for num, event in own] for _, own in segments],
            self.store.all("key, value", "meta"),
            [sorted(counts.items()) for counts in (facts.replies, facts.num_tries, facts.written, facts.crashes)],
            sorted(facts.events_left.items()), sorted(facts.expired), self.process and self._process_key(self.process),
        )  # fmt: skip

    def _process_key(self, process: Process) -> tuple[Any, ...]:
        journal, loop, names = process.journal, process.loop, self.facts.names
        unwritten = journal._unwritten
        return (
            process.is_ready,
            [_entry_key(entry) for entry in process.entries],
            [(function.__name__, [_entry_key(entry) for entry in args[0]], args[1] is None)
             if function.__name__ == "_deliver" else function.__name__ for function, args in loop.posted],
            [(task.name, task.num_waits) for task in loop.tasks],
            sorted(process.engine.running.items()),
            [(kept.job.seq_id, kept.num_left, len(kept.deltas)) for kept in process.backend._kept.values()],
            [(job.seq_id, [(len(output.token_ids), output.finish_reason or "") for output in job.outputs])
             for job in process.results.index.of("")],
            len(unwritten.begun), len(unwritten.deleted), [names.get(end.num, end.num) for end in unwritten.endings],
            [(names.get(num, num), event[0], len(event[2])) for num, event in journal._unwritten_events],
            journal._failure is None, process.backend.failure is None,
        )  # fmt: skip


def _entry_key(entry: Any) -> Any:
    if isinstance(entry, tuple):
        return entry[0].job.seq_id, entry[1].index, len(entry[1].token_ids), entry[1].finish_reason or ""
    return type(entry).__name__, bool(getattr(entry, "accepted", ())), len(getattr(entry, "deleted", ()))


async def _no_receipts(_params: Any) -> None:
    return None


class Replay:
    """Memory of states: the disk before a process, and its path, which happens again. Nothing is forgotten."""

    def __init__(self, world: JournalWorld) -> None:
        self._world = world
        self.key = world.key

    def save(self) -> tuple[Base, tuple[str, ...]]:
        """Return the way to the state."""
        return self._world.base, tuple(self._world.path)

    def restore(self, snapshot: tuple[Base, tuple[str, ...]]) -> None:
        """Begin again, and let the path happen."""
        base, path = snapshot
        self._world.begin(base)
        for action in path:
            self._world.act(action)
