"""Results on disk without a server: what is found where, and a job that cannot be read any more."""

import asyncio
import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest
from fake_engine import FakeEngine
from kept_results import durable_results, open_results

from splitfuse.engine.core.outputs import KnownOutput, OutputDelta
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.serving.submitted_request import Resumed
from splitfuse.server.api.native.background import SavedGenerate
from splitfuse.server.http.errors import NotReadyError, QuotaExceededError, ResultNotFoundError
from splitfuse.server.jobs.idempotency import IdempotencyKey
from splitfuse.server.jobs.job import Job, JobObserver
from splitfuse.server.jobs.job_index import ResultLimits
from splitfuse.server.jobs.saved_request import SavedRequest
from splitfuse.server.results.durable.records import Changes, JobRow, dump_segment, event_of
from splitfuse.server.results.durable.resumption import Resumption
from splitfuse.server.results.durable.sqlite_store import SqliteStore
from splitfuse.server.results.shared.shared_backend import SharedBackend
from splitfuse.server.settings import Settings


def limits(*, max_results: int) -> ResultLimits:
    return ResultLimits(ttl=60, max_results=max_results, max_bytes=10**9)


def unfinished_row(num: int, *, first_segment: int = 1, body: dict[str, Any] | None = None) -> JobRow:
    request = {
        "kind": "generate", "body": body or {}, "user": "", "attachment": None, "prompt_token_ids": [1], "seed": 1,
    }  # fmt: skip
    request |= {"fingerprint": "fake", "model": "m", "num_outputs": 1, "stream_interval": 1, "ttl_s": 60.0}
    return JobRow(num, f"job{num}", "", 1.0, json.dumps(request), first_segment)


def delta(seq_id: str, token_id: int) -> OutputDelta:
    return OutputDelta(seq_id, 0, "x", (token_id,))


def opened(path: Path) -> Any:
    return open_results(limits(max_results=9), open_store=lambda: SqliteStore(path), kinds={})


async def test_a_job_of_another_version_fails_alone(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    store = SqliteStore(path)
    store.begin_process()
    request = {"kind": "unheard of", "body": {}, "user": "", "attachment": {"a": 1}, "prompt_token_ids": [1], "seed": 1}
    request |= {"fingerprint": "fake", "model": "m", "num_outputs": 1, "stream_interval": 1, "ttl_s": 60.0}
    row = JobRow(num=1, seq_id="old", owner="", created=1.0, request=json.dumps(request), first_segment=1)
    store.commit(Changes(accepted=[row]))
    store.close()
    async with open_results(limits(max_results=1), open_store=lambda: SqliteStore(path), kinds={}) as results:
        assert results.get("old", owner="").status == "queued"
        await Resumption(results.backend, FakeEngine(), {}, Settings()).run()  # type: ignore[arg-type]
        job = await results.find("old", owner="")
        await job.wait(60)
        assert (job.status, str(job.failure())) == ("failed", "interrupted: it cannot go on here (KeyError)")


async def fill(results: Any) -> None:
    """Keep the results of three jobs."""
    engine = FakeEngine()
    await engine.start()
    for name in ("a", "b", "c"):
        job = Job(name, model="m", owner="me")
        results.add(job)
        handle = await engine.submit([104, 105], SamplingParams(max_tokens=3), results.sink(job), request_id=name)
        job.accept(handle)
        await results.accept(job, handle, SavedRequest(kind="generate", body={}), user="", fingerprint="fake")
        await job.wait(60)


async def test_what_the_memory_has_no_room_for_is_found_on_disk(tmp_path: Path) -> None:
    results = durable_results(limits(max_results=2), open_store=lambda: SqliteStore(tmp_path / "r.db"), kinds={})
    with pytest.raises(NotReadyError):
        await results.find("early", owner="")
    await results.open()
    await fill(results)
    assert len(results) == 2
    found = await results.find("a", owner="me")
    assert (found.status, len(found.outputs[0].token_ids)) == ("completed", 3)
    with pytest.raises(ResultNotFoundError):
        await results.find("a", owner="you")
    assert [row.seq_id for row in await results.page("me", after=None, limit=9, status=None)] == ["c", "b", "a"]
    assert await results.delete_all("me") == {"a", "b", "c"}
    with pytest.raises(ResultNotFoundError):
        await results.find("a", owner="me")
    results.check()
    await results.close()


async def test_readers_at_once_bring_a_result_back_once(tmp_path: Path) -> None:
    """Each reader waits for the disk, and meanwhile another one may have put the job into memory."""
    async with open_results(
        limits(max_results=2), open_store=lambda: SqliteStore(tmp_path / "r.db"), kinds={}
    ) as results:
        await fill(results)
        found = await asyncio.gather(*(results.find("a", owner="me") for _ in range(30)))
        assert len(set(map(id, found))) == 1
        results.check()


async def test_a_take_over_is_not_refused_by_its_owners_quota(tmp_path: Path) -> None:
    """The jobs were accepted: a server that claims them goes on with all of them."""
    most_one = ResultLimits(ttl=60, max_results=9, max_bytes=10**9, max_unfinished=1)
    results = durable_results(most_one, open_store=Mock(), kinds={}, backend=SharedBackend, lease_s=30.0)
    resumption = Mock(resume=AsyncMock())
    results.backend.begin_claiming(resumption, Mock())
    results.add(Job("own", model="m", owner="me"))
    claimed = [
        SimpleNamespace(row=SimpleNamespace(seq_id=name), kept=SimpleNamespace(job=Job(name, model="m", owner="me")))
        for name in ("a", "b")
    ]
    results.backend._go_on_with(claimed)  # type: ignore[arg-type]
    await asyncio.gather(*results.backend._resuming)
    resumption.resume.assert_awaited_once_with(claimed)
    assert {results.get(name, owner="me").status for name in ("a", "b")} == {"queued"}
    results.check()
    with pytest.raises(QuotaExceededError):
        results.add(Job("new", model="m", owner="me"))


async def test_a_new_job_has_no_events_of_a_deleted_one(tmp_path: Path) -> None:
    """A job's number is not reused while there are events of it."""
    path = tmp_path / "results.db"
    store = SqliteStore(path)
    body = dump_segment([(num, event_of(delta(f"job{num}", num))) for num in (1, 2)], wall=1.0, monotonic=1.0)
    store.commit(Changes(accepted=[unfinished_row(1), unfinished_row(2)], segment=(1, body)))
    store.commit(Changes(deleted=["job2"]))
    store.close()
    async with opened(path) as results:
        job = Job("new", model="m")
        results.add(job)
        results.sink(job)
        handle = SimpleNamespace(prompt_token_ids=[1], seed=1, parent=None)
        kept = SavedRequest(kind="generate", body={})
        await results.accept(job, handle, kept, user="", fingerprint="fake")  # type: ignore[arg-type]
    async with opened(path) as results:
        events = {
            begun.row.seq_id: [event.token_ids for event in begun.kept.job.events]
            for begun in results.backend.to_resume
        }
        assert events == {"job1": [(1,)], "new": []}


async def test_what_a_job_tells_after_all_segments_were_swept_is_found_again(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    store = SqliteStore(path)
    store.commit(Changes(accepted=[unfinished_row(1, first_segment=10)]))
    store.close()
    for token_id in (5, 6):
        async with opened(path) as results:
            results.backend.resumed_sink(results.backend.to_resume[0])(delta("job1", token_id))
            await results.backend.use(lambda store: store.sweep(0.0, max_jobs=1))
    async with opened(path) as results:
        assert [event.token_ids for event in results.backend.to_resume[0].kept.job.events] == [(5,), (6,)]


class ResumingEngine(FakeEngine):
    """Engine that begins the jobs it is to resume."""

    async def submit(self, *args: Any, resumed: Resumed, **options: Any) -> Any:
        assert resumed.outputs == (KnownOutput(),)
        return await super().submit(*args, **options)


async def test_with_another_model_what_has_told_nothing_begins_afresh(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    store = SqliteStore(path)
    bodies = [{"prompt": "hi", "max_tokens": 3}, {"prompt": "hi", "max_tokens": 3}, {"prompt": "hi", "model": "m"}]
    rows = [unfinished_row(num, body=body) for num, body in enumerate(bodies, 1)]
    body = dump_segment([(2, event_of(delta("job2", 7)))], wall=1.0, monotonic=1.0)
    store.commit(Changes(accepted=rows, segment=(1, body)))
    store.close()
    kinds = {"generate": SavedGenerate(lambda stored: None)}
    async with open_results(limits(max_results=9), open_store=lambda: SqliteStore(path), kinds=kinds) as results:
        engine, settings = ResumingEngine(), Settings()
        await engine.start()
        engine.fingerprint = "another"
        jobs = [begun.kept.job for begun in results.backend.to_resume]
        await Resumption(results.backend, engine, kinds, settings).run()  # type: ignore[arg-type]
        for job in jobs:
            await job.wait(60)
        assert [job.status for job in jobs] == ["completed", "failed", "failed"]
        assert (jobs[0].model, jobs[0].num_prompt_tokens) == (settings.model_name, 2)
        assert jobs[1].outputs[0].token_ids == [7], "what was told stays"
        assert "the model, its adapter, tokenizer, template, dtype or splitfuse has changed" in str(jobs[1].failure())
        assert "it asks for another model" in str(jobs[2].failure())
        row = await results.backend.use(lambda store: store.find("job1"))
        assert row is not None
        kept = json.loads(row.request)
        assert (kept["fingerprint"], kept["prompt_token_ids"], kept["body"]) == ("another", [104, 105], bodies[0])
        results.check()


@pytest.mark.parametrize(
    "change", ["request = '{'", "request = '[]'", "request = 5", "created = 'x'", "seq_id = x'ff'"]
)
@pytest.mark.parametrize("has_sums", [True, False])
async def test_an_unfinished_job_that_was_changed_fails_alone(tmp_path: Path, change: str, has_sums: bool) -> None:
    path = tmp_path / "results.db"
    store = SqliteStore(path)
    store.commit(Changes(accepted=[unfinished_row(1), unfinished_row(2)]))
    store._db.execute(f"UPDATE jobs SET {change} WHERE num = 1")
    if not has_sums:
        store._db.execute("UPDATE jobs SET row_sum = NULL, request_sum = NULL")
    store.close()
    async with opened(path) as results:
        damaged, whole = results.backend.to_resume
        assert (damaged.is_damaged, whole.is_damaged) == (has_sums or "seq_id" not in change, False)
        await Resumption(results.backend, FakeEngine(), {}, Settings()).resume([damaged])
        if damaged.is_damaged:
            await damaged.kept.job.ended.wait()
            assert damaged.kept.job.status == "failed"


async def test_after_a_damaged_segment_nothing_is_read(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    store = SqliteStore(path)
    store.commit(Changes(accepted=[unfinished_row(1)]))
    for number in range(1, 5):
        body = dump_segment([(1, event_of(delta("job1", number)))], wall=1.0, monotonic=1.0)
        store.commit(Changes(segment=(number, body[:-1] + b" " if number == 3 else body)))
    store.close()
    async with opened(path) as results:
        assert results.backend.to_resume[0].resumed.outputs[0].token_ids == (1, 2), "the fourth would follow a gap"


async def kept_job(results: Any, body: dict[str, Any] | None = None, **fields: Any) -> Job:
    """Keep a job of one token and end it."""
    job = Job(results.new_job(model="m").seq_id, model="m", **fields)
    results.add(job)
    sink = results.sink(job)
    handle: Any = SimpleNamespace(prompt_token_ids=[1], seed=1, parent=None)
    await results.accept(job, handle, SavedRequest(kind="generate", body={}), user="", fingerprint="fake")
    sink(OutputDelta(job.seq_id, 0, "x", (1,), finish_reason="stop"))
    await job.ended.wait()
    return job


async def test_a_request_that_is_deleted_while_the_engine_takes_it_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path / "results.db") as results:
        job = Job(results.new_job(model="m").seq_id, model="m")
        results.add(job)
        results.sink(job)
        await results.delete_all("")
        handle: Any = SimpleNamespace(prompt_token_ids=[1], seed=1, parent=None)
        with pytest.raises(NotReadyError, match="deleted while"):
            await results.accept(job, handle, SavedRequest(kind="generate", body={}), user="", fingerprint="fake")


@pytest.mark.parametrize("how", ["one", "all"])
async def test_a_reader_does_not_bring_a_deleted_job_back(tmp_path: Path, how: str) -> None:
    async with opened(tmp_path / "results.db") as results:
        job = await kept_job(results)
        results.index.forget(job)  # only the disk has it
        has_read = asyncio.Event()
        loop, store = asyncio.get_running_loop(), results.backend._journal._store

        def find(seq_id: str) -> JobRow | None:
            row = SqliteStore.find(store, seq_id)
            loop.call_soon_threadsafe(has_read.set)
            time.sleep(0.1)  # meanwhile the deletion comes
            return row

        store.find = find
        reading = asyncio.create_task(results.find(job.seq_id, owner=""))
        await has_read.wait()
        await (results.delete(job) if how == "one" else results.delete_all(""))
        await reading
        assert len(results) == 0
        with pytest.raises(ResultNotFoundError):
            await results.find(job.seq_id, owner="")
        results.check()


async def test_the_key_of_an_expired_job_can_be_used_again(tmp_path: Path) -> None:
    async with opened(tmp_path / "results.db") as results:
        key = IdempotencyKey(b"k", b"b")
        first = await kept_job(results, idempotency_key=key, ttl_s=0.01)
        await asyncio.sleep(0.02)
        results.index.forget(first)
        async with results.idempotent("", key) as earlier:
            assert earlier is None
            second = await kept_job(results, idempotency_key=key)
        async with results.idempotent("", key) as earlier:
            assert earlier is second
        assert results.backend.failure is None


async def test_an_observer_that_fails_keeps_the_others_from_nothing() -> None:
    heard: list[str] = []

    class Bad(JobObserver):
        def job_grew(self, job: Job, num_bytes: int) -> None:
            raise ZeroDivisionError

        job_ended = job_grew  # type: ignore[assignment]

    class Good(JobObserver):
        def job_grew(self, job: Job, num_bytes: int) -> None:
            heard.append("grew")

        def job_ended(self, job: Job) -> None:
            heard.append("ended")

    job = Job("a", model="m", observers=[Bad(), Good()])
    job.sink(OutputDelta("a", 0, "x", (1,), finish_reason="stop"))
    assert heard == ["grew", "ended"]
