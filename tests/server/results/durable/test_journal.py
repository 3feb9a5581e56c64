"""The journal: written first, told afterwards, and what happens while the disk is full."""

import asyncio
import dataclasses
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from unittest.mock import Mock

import pytest

from splitfuse.engine.core.outputs import OutputDelta
from splitfuse.server.jobs.job import Job
from splitfuse.server.results.durable import journal, records
from splitfuse.server.results.durable.journal import Journal, StoredJob
from splitfuse.server.results.durable.records import Changes, Event, JobRow, load_segment
from splitfuse.server.results.durable.sqlite_store import SqliteStore
from splitfuse.server.results.durable.store import StoreError


class GatedStore(SqliteStore):
    """Store that commits when the test lets it, and fails when the test wants it."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.gate = threading.Event()
        self.gate.set()
        self.failure: StoreError | None = None
        self.commits: list[Changes] = []

    def commit(self, changes: Changes) -> None:
        self.gate.wait(60)
        if changes and self.failure is not None:  # to write nothing works on a full disk too
            raise self.failure
        if changes:
            self.commits.append(dataclasses.replace(changes))
        super().commit(changes)


class Kept:
    """Journal over a gated store, and what it says of failures."""

    def __init__(self, path: Path, *, is_shared: bool = False) -> None:
        self.store = GatedStore(path)
        self.failures: list[StoreError | None] = []
        self.changed = asyncio.Event()
        self.journal = Journal(self.store, on_failure=self._failed, wall_clock=lambda: 1000.0, is_shared=is_shared)

    def _failed(self, failure: StoreError | None) -> None:
        self.failures.append(failure)
        self.changed.set()

    def job(self, *, num_outputs: int = 1) -> StoredJob:
        num = self.journal.new_number()
        return StoredJob(num, Job(f"job{num}", model="m", num_outputs=num_outputs), num_outputs, 60.0)

    async def accept(self, kept: StoredJob) -> None:
        seq_id = kept.job.seq_id
        row = JobRow(num=kept.num, seq_id=seq_id, owner="", created=1.0, request="{}", first_segment=1)
        await self.journal.accept(row, kept)

    def events_on_disk(self) -> list[tuple[int, list[int]]]:
        return [(num, event[2]) for body in self.store.segments(0) for num, event in load_segment(body).events]


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[Kept]:
    kept = Kept(tmp_path / "results.db")
    yield kept
    kept.store.gate.set()
    await kept.journal.close()


def delta(kept: StoredJob, token_id: int, *, end: bool = False) -> OutputDelta:
    return OutputDelta(kept.job.seq_id, 0, "x", (token_id,), finish_reason="length" if end else None)


async def test_nothing_is_told_before_it_is_on_disk(kept: Kept) -> None:
    job = kept.job()
    await kept.accept(job)
    kept.store.gate.clear()
    sink = kept.journal.sink(job)
    sink(delta(job, 1))
    sink(delta(job, 2, end=True))
    later = asyncio.ensure_future(kept.journal.read(lambda store: store.find("job1")))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (job.job.events, job.job.finished) == ([], False)
    kept.store.gate.set()
    row = await later
    await job.job.wait(60)
    assert (job.job.status, row is not None and row.status) == ("completed", "completed")
    assert [event.token_ids for event in job.job.events] == [(1,), (2,)]


async def test_all_that_waits_is_one_transaction_and_one_row(kept: Kept) -> None:
    jobs = [kept.job() for _ in range(64)]
    await asyncio.gather(*map(kept.accept, jobs))
    kept.store.gate.clear()
    kept.journal.sink(jobs[0])(delta(jobs[0], 7))  # the writer waits with this one
    before = len(kept.store.commits)
    for step in range(3):
        for job in jobs:
            kept.journal.sink(job)(delta(job, step))
    kept.store.gate.set()
    await kept.journal.read(lambda store: None)
    assert len(kept.store.commits) - before <= 3
    assert len(kept.events_on_disk()) == 1 + 3 * 64
    for job in jobs[1:]:
        assert [event.token_ids for event in job.job.events] == [(0,), (1,), (2,)]


async def test_a_sink_that_raises_costs_no_other_job_its_end(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken, whole = kept.job(), kept.job()
    await asyncio.gather(kept.accept(broken), kept.accept(whole))
    monkeypatch.setattr(broken.job, "sink", Mock(side_effect=ZeroDivisionError))
    kept.store.gate.clear()
    for job in (broken, whole):
        kept.journal.sink(job)(delta(job, 1, end=True))
    kept.store.gate.set()
    await whole.job.wait(60)
    assert whole.job.status == "completed"
    assert "delivering written events to a job failed" in caplog.text


async def test_an_event_that_cannot_be_written_costs_no_other_job_its_events(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broken, whole = kept.job(), kept.job()
    await asyncio.gather(kept.accept(broken), kept.accept(whole))

    def event_of(item: OutputDelta) -> Event:
        if item.request_id == broken.job.seq_id:
            raise ZeroDivisionError
        return records.event_of(item)

    monkeypatch.setattr(journal, "event_of", event_of)
    for job in (broken, whole):
        kept.journal.sink(job)(delta(job, 1, end=True))
    await whole.job.wait(60)
    assert whole.job.status == "completed"
    await kept.journal.read(lambda store: None)  # the writer's thread lives
    assert kept.events_on_disk() == [(whole.num, [1])]
    assert "cannot be written" in caplog.text


async def test_while_the_disk_is_full_running_jobs_go_on_and_no_event_is_left_out(kept: Kept) -> None:
    job = kept.job()
    await kept.accept(job)
    sink = kept.journal.sink(job)
    sink(delta(job, 1))
    await kept.journal.read(lambda store: None)
    kept.store.failure = StoreError("the disk is full")
    sink(delta(job, 2))
    await kept.changed.wait()
    with pytest.raises(StoreError, match="disk is full"):
        await kept.accept(refused := kept.job())
    kept.journal.sink(refused)(delta(refused, 99))
    await kept.journal.read(lambda store: None)
    assert [event.token_ids for event in job.job.events] == [(1,), (2,)]
    kept.changed.clear()
    kept.store.failure = None
    await asyncio.wait_for(kept.changed.wait(), 60)  # by itself
    sink(delta(job, 3, end=True))
    row = await kept.journal.read(lambda store: store.find("job1"))
    assert row is not None
    assert row.status == "completed"
    on_disk = await kept.journal.read(lambda store: kept.events_on_disk())
    assert [token_ids for num, token_ids in on_disk if num == job.num] == [[1], [2], [3]]
    assert [type(failure) for failure in kept.failures] == [StoreError, type(None)]
    assert await kept.journal.read(lambda store: store.find(refused.job.seq_id)) is None


async def test_in_a_shared_store_nothing_is_told_while_it_cannot_be_written(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "results.db", is_shared=True)
    job = kept.job()
    await kept.accept(job)
    kept.store.failure = StoreError("the database is away")
    for token_id in range(3):
        kept.journal.sink(job)(delta(job, token_id))
        await kept.journal.read(lambda store: None)
    await kept.changed.wait()
    with pytest.raises(StoreError):
        await kept.accept(kept.job())
    assert job.job.events == []
    kept.store.failure = None
    kept.journal.sink(job)(delta(job, 3, end=True))
    await job.job.wait(60)
    assert [event.token_ids for event in job.job.events] == [(0,), (1,), (2,), (3,)]
    await kept.journal.close()


async def test_a_full_disk_stays_known_while_there_is_nothing_to_write(kept: Kept) -> None:
    kept.store.failure = StoreError("the disk is full")
    with pytest.raises(StoreError):
        await kept.accept(kept.job())
    for _ in range(3):
        await kept.journal.read(lambda store: None)
    assert [type(failure) for failure in kept.failures] == [StoreError]
    kept.store.failure = None
    await kept.journal.read(lambda store: None)
    assert [type(failure) for failure in kept.failures] == [StoreError, type(None)]


async def test_a_disk_that_fails_under_a_batch_is_known_too(kept: Kept) -> None:
    def write(store: object) -> None:
        raise StoreError("the disk is full")

    kept.store.failure = StoreError("the disk is full")
    with pytest.raises(StoreError):
        await kept.journal.read(write)
    await asyncio.wait_for(kept.changed.wait(), 60)
    assert kept.failures == [kept.store.failure]


async def test_what_is_deleted_is_gone_when_it_returns(kept: Kept) -> None:
    job = kept.job()
    await kept.accept(job)
    await kept.journal.delete("job1")
    assert await kept.journal.read(lambda store: store.find("job1")) is None


async def test_close_writes_what_has_come(tmp_path: Path) -> None:
    kept = Kept(tmp_path / "results.db")
    kept.store.begin_process()
    job = kept.job()
    await kept.accept(job)
    for token_id in range(100):
        kept.journal.sink(job)(delta(job, token_id))
    await kept.journal.close()
    after = SqliteStore(tmp_path / "results.db")
    assert after.begin_process(), "it ended properly"
    assert sum(len(load_segment(body).events) for body in after.segments(0)) == 100
    after.close()


async def test_a_read_that_is_cancelled_ends_nothing_else(kept: Kept) -> None:
    kept.store.gate.clear()
    reads = [asyncio.create_task(kept.journal.read(lambda store: store.last_numbers())) for _ in range(3)]
    await asyncio.sleep(0)
    reads[0].cancel()
    reads[1].cancel()
    kept.store.gate.set()
    assert await asyncio.wait_for(reads[2], 60) == (0, 0)
    assert await asyncio.wait_for(kept.journal.read(lambda store: store.last_numbers()), 60) == (0, 0)


async def test_a_sweep_that_raises_does_not_end_the_writer(
    kept: Kept, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kept.store, "sweep", Mock(side_effect=ZeroDivisionError))
    kept.journal._swept_at = float("-inf")  # due after the next commit
    async with asyncio.timeout(240):
        await kept.journal.read(lambda store: None)
        await kept.accept(kept.job())
    assert "expired results cannot be deleted" in caplog.text
