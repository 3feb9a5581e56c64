"""Promises of every Store, and SQLite's own."""

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from postgres_server import PostgresServer

from splitfuse.engine.errors import ConfigError
from splitfuse.server.api.listing import Page
from splitfuse.server.results.durable.batch_rows import BatchChanges, BatchRow, FileRow, LinesDone
from splitfuse.server.results.durable.records import Changes, Ending, JobRow
from splitfuse.server.results.durable.sqlite_store import SqliteStore
from splitfuse.server.results.durable.store import Store, StoreError

Reopen = Callable[[], Store]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


@pytest.fixture
def sqlite_reopened(path: Path) -> Iterator[Reopen]:
    """Open the store in a file and close the one before."""
    yield from reopening(lambda: SqliteStore(path))


@pytest.fixture
def postgres_reopened(postgres: PostgresServer) -> Iterator[Reopen]:
    """Reopen a store in PostgreSQL when the lease of the one before has run out."""
    yield from reopening(opener(postgres.database()))


def opener(database: str) -> Callable[[], Store]:
    """Open the store in a database and let the leases of others run out."""
    import psycopg

    from splitfuse.server.results.shared.postgres_store import PostgresStore

    def opened() -> Store:
        store = PostgresStore(database, url="http://here", model="", lease_s=60)
        with psycopg.connect(database, autocommit=True) as db:
            db.execute(
                "UPDATE splitfuse_holders SET expires = now() - interval '1s' WHERE num < %s", (store.holder.num,)
            )
        return store

    return opened


@pytest.fixture(params=["sqlite", "postgres"])
def reopened(request: pytest.FixtureRequest) -> Reopen:
    """Either."""
    reopen: Reopen = request.getfixturevalue(f"{request.param}_reopened")
    return reopen


def reopening(open_store: Callable[[], Store]) -> Iterator[Reopen]:
    opened: list[Store] = []

    def reopen() -> Store:
        while opened:
            opened.pop().close()
        opened.append(open_store())
        return opened[-1]

    yield reopen
    while opened:
        opened.pop().close()


def row(num: int, **changed: object) -> JobRow:
    plain = JobRow(num=num, seq_id=f"job{num}", owner="me", created=100.0 + num, request="{}", first_segment=1)
    return dataclasses.replace(plain, **changed)  # type: ignore[arg-type]


def ending(num: int, *, expires: float = 500.0) -> Ending:
    return Ending(num, "completed", 200.0, expires, '[[0,"x",[1]]]')


def test_what_was_committed_is_there_again(reopened: Reopen) -> None:
    store = reopened()
    store.commit(Changes(accepted=[row(1), row(2, idempotency_key=b"k", body_digest=b"b")], segment=(1, b"first")))
    store.commit(Changes(segment=(2, b"second"), endings=[ending(1)]))
    store = reopened()
    assert [job.num for job in store.unfinished()] == [2]
    assert list(store.segments(1)) == [b"first", b"second"]
    assert list(store.segments(2)) == [b"second"]
    found = store.find("job1")
    assert found is not None
    assert (found.status, found.finished, found.expires, found.result) == ("completed", 200.0, 500.0, '[[0,"x",[1]]]')
    assert not found.is_running
    assert store.find_key("me", b"k") == store.find("job2") == row(2, idempotency_key=b"k", body_digest=b"b")
    assert store.find_key("you", b"k") is None
    assert store.find("job3") is None


def test_a_transaction_is_written_whole_or_not_at_all(reopened: Reopen) -> None:
    store = reopened()
    store.commit(Changes(accepted=[row(1, idempotency_key=b"k")]))
    with pytest.raises(StoreError):
        store.commit(Changes(segment=(1, b"x"), endings=[ending(1)], accepted=[row(2, idempotency_key=b"k")]))
    assert list(store.segments(0)) == []
    assert [job.num for job in store.unfinished()] == [1]
    store.commit(Changes(segment=(1, b"x")))
    assert list(reopened().segments(0)) == [b"x"]


def test_only_jobs_that_ran_count_a_crash(reopened: Reopen) -> None:
    store = reopened()
    assert store.begin_process(), "a new store"
    store.commit(Changes(accepted=[row(1), row(2), row(3)], endings=[ending(3)]))
    store = reopened()
    assert not store.begin_process()
    store.commit(Changes(begun=[2]))
    store = reopened()
    assert not store.begin_process()
    assert [(job.num_crashes, job.num_attempts, job.is_running) for job in store.unfinished()] == [(1, 3, 0), (2, 3, 0)]
    store.commit(Changes(begun=[1, 2]))
    store.end_process()
    store = reopened()
    assert store.begin_process()
    assert [(job.num_crashes, job.num_attempts) for job in store.unfinished()] == [(1, 4), (2, 4)]
    store.commit(Changes(begun=[2]))
    store.end_process(has_crashed=True)
    store = reopened()
    assert not store.begin_process()
    assert [job.num_crashes for job in store.unfinished()] == [1, 3]
    done = store.find("job3")
    assert done is not None
    assert (done.num_crashes, done.num_attempts) == (0, 1)


def test_what_nobody_can_ask_for_is_swept(reopened: Reopen) -> None:
    store = reopened()
    first = [row(num, first_segment=num) for num in range(1, 6)]
    store.commit(Changes(accepted=first, endings=[ending(num, expires=100.0 * num) for num in range(1, 5)]))
    for num in range(1, 7):
        store.commit(Changes(segment=(num, b"x")))
    assert store.sweep(200.0, max_jobs=1) == 1
    assert store.sweep(200.0, max_jobs=5) == 1
    assert (store.find("job2"), store.find("job3") is None) == (None, False)
    assert len(list(store.segments(0))) == 2, "of segments 5 and 6 the unfinished job may have events"
    store.commit(Changes(deleted=["job5"]))
    store.sweep(200.0, max_jobs=5)
    assert list(store.segments(0)) == []


def test_the_bytes_of_an_owner_are_those_of_requests_and_results(reopened: Reopen) -> None:
    store = reopened()
    request, result = "q" * 1000, "r" * 500
    done = dataclasses.replace(ending(1), result=result)
    store.commit(Changes(accepted=[row(num, request=request) for num in (1, 2)], endings=[done]))
    store.commit(Changes(accepted=[row(3, owner="you")]))
    assert 2500 <= store.num_bytes_of("me") <= 2520
    assert store.num_bytes_of("you") < 20
    assert store.num_bytes_of("he") == 0
    store.commit(Changes(deleted=["job1"]))
    assert 1000 <= store.num_bytes_of("me") <= 1020


def test_a_job_is_kept_as_another_model_has_it(reopened: Reopen) -> None:
    store = reopened()
    store.commit(Changes(accepted=[row(1), row(2)]))
    store.commit(Changes(renewed=[(1, '{"new":1}')], segment=(1, b"x")))
    assert [job.request for job in reopened().unfinished()] == ['{"new":1}', "{}"]


def test_a_process_numbers_on_from_what_is_there(sqlite_reopened: Reopen) -> None:
    store = sqlite_reopened()
    assert store.last_numbers() == (0, 0)
    store.commit(Changes(accepted=[row(1), row(2, idempotency_key=b"k")], segment=(1, b"first")))
    store.commit(Changes(segment=(2, b"second"), endings=[ending(1)]))
    with pytest.raises(StoreError):
        store.commit(Changes(segment=(3, b"x"), accepted=[row(3, idempotency_key=b"k")]))
    assert store.last_numbers() == (2, 2)
    assert sqlite_reopened().last_numbers() == (2, 2)


def test_a_file_of_another_kind_is_refused(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)
    with pytest.raises(ConfigError, match="not a database"):
        SqliteStore(path)


def test_what_is_deleted_is_in_no_file_any_more(sqlite_reopened: Reopen, path: Path) -> None:
    store = sqlite_reopened()
    secret = "deleting is forgetting"
    for num in range(1, 30):
        store.commit(Changes(accepted=[row(num, request=secret * 50)], segment=(num, secret.encode() * 100)))
    store.commit(Changes(deleted=[f"job{num}" for num in range(1, 30)]))
    store.sweep(0.0, max_jobs=5)
    files = [file.read_bytes() for file in path.parent.iterdir()]
    assert len(files) == 2
    assert not any(secret.encode() in data for data in files)


def test_what_a_killed_process_deleted_is_gone_after_the_first_sweep(path: Path) -> None:
    store = SqliteStore(path)
    secret = b"deleting is forgetting"
    store.commit(Changes(accepted=[row(1, request=secret.decode() * 50)]))
    store.write_batches(BatchChanges(files=(file_row("1"),), parts=(("file-1", 0, secret * 50),)))
    store.commit(Changes(deleted=["job1"]))
    copy = path.with_name("copy.db")
    for suffix in ("", "-wal"):
        Path(f"{copy}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    store.close()
    store = SqliteStore(copy)
    for now in (600.0, 600.0):  # the file has expired
        store.sweep(now, max_jobs=5)
    assert not any(secret in Path(f"{copy}{suffix}").read_bytes() for suffix in ("", "-wal"))
    store.close()


def file_row(name: str, **changed: object) -> FileRow:
    plain = FileRow(f"file-{name}", "me", 100.0, 500.0, "batch", "input.jsonl", 3, 1)
    return dataclasses.replace(plain, **changed)  # type: ignore[arg-type]


def batch_row(name: str, **changed: object) -> BatchRow:
    return dataclasses.replace(BatchRow(f"batch-{name}", "me", 100.0, 500.0, "{}"), **changed)  # type: ignore[arg-type]


def test_files_and_batches_are_there_again(reopened: Reopen) -> None:
    store = reopened()
    files = [file_row("1"), file_row("2", owner="you"), file_row("3", purpose="batch_output"), file_row("4")]
    batches = [batch_row("1", idempotency_key=b"k", body_digest=b"b"), batch_row("2"), batch_row("3", owner="you")]
    store.write_batches(BatchChanges(files=tuple(files), batches=tuple(batches)))
    store.write_batches(BatchChanges(parts=(("file-1", 1, b"bc"), ("file-1", 0, b"a"))))
    store.write_batches(BatchChanges(batches=(batch_row("1", body='{"a":1}', is_over=True),)))
    store = reopened()
    assert store.find_file("file-2") == files[1]
    assert store.list_files("me", Page(2), now=200.0) == [files[3], files[2]]
    assert store.list_files("me", Page(2, after="file-3"), now=200.0) == [files[0]]
    assert store.list_files("me", Page(2, after="file-1", ascends=True), now=200.0) == [files[2], files[3]]
    assert store.list_files("me", Page(9), now=200.0, purpose="batch_output") == [files[2]]
    assert store.list_files("me", Page(9), now=500.0) == [], "they have expired"
    assert store.parts("file-1", after=-1, limit=9) == [(0, b"a"), (1, b"bc")]
    assert store.parts("file-1", after=0, limit=1) == [(1, b"bc")]
    assert (store.file_bytes("file-1"), store.num_file_bytes()) == (3, 12)
    found = store.find_batch_key("me", b"k")
    assert found == dataclasses.replace(batches[0], body='{"a":1}', is_over=True)
    assert store.find_batch_key("you", b"k") is None
    assert store.unfinished_batches() == batches[1:]
    assert store.num_unfinished_batches() == 2
    assert store.list_batches("me", Page(9), now=200.0) == [batches[1], found]


def begun(store: Store, *names: str) -> None:
    """Begin batches with files for their answers."""
    batches = tuple(dataclasses.replace(batch_row(name), batch_id=name) for name in names)
    plain = file_row("", state="partial", purpose="batch_output")
    outputs = tuple((f"{kind}-{name}", name) for kind in ("out", "err") for name in names)
    files = tuple(dataclasses.replace(plain, file_id=file_id) for file_id, _ in outputs)
    store.write_batches(BatchChanges(files=files, batches=batches, outputs=outputs))


def test_a_line_is_answered_once(reopened: Reopen) -> None:
    store = reopened()
    store.begin_process()
    begun(store, "b", "other")
    store.write_batches(BatchChanges(begun=(("b", 1), ("b", 2), ("b", 3), ("other", 1))))
    store.write_batches(BatchChanges(parts=(("out-b", 1, b"first"),), answered=(("b", 1),)))
    store.write_batches(BatchChanges(parts=(("out-b", 1, b"second"), ("err-b", 3, b"x")), answered=(("b", 3),)))
    store = reopened()
    assert not store.begin_process()
    store.write_batches(BatchChanges(begun=(("b", 2),)))
    assert store.lines_done("b", "out-b", "err-b") == LinesDone(frozenset({1}), frozenset({3}), {2: 1})
    assert store.parts("out-b", after=-1, limit=9) == [(1, b"first")]
    store.end_process()
    store = reopened()
    store.begin_process()
    assert store.lines_done("b", "out-b", "err-b").num_crashes == {2: 1}, "it did not crash this time"


def test_a_line_counts_only_the_crashes_of_processes_that_ran_it(reopened: Reopen) -> None:
    store = reopened()
    store.begin_process()
    begun(store, "b")
    store.write_batches(BatchChanges(begun=(("b", 1), ("b", 2))))
    for _ in range(2):  # 2 is tried alone and ends the process again
        store = reopened()
        assert not store.begin_process()
        store.write_batches(BatchChanges(begun=(("b", 2),)))
    store = reopened()
    store.begin_process()
    assert store.lines_done("b", "out-b", "err-b").num_crashes == {1: 1, 2: 3}


def test_files_are_swept_when_they_are_of_no_more_use(reopened: Reopen) -> None:
    store = reopened()
    files = (file_row("cut", state="partial"), file_row("out", state="partial", purpose="batch_output"))
    files += (file_row("late", expires=900.0), file_row("gone", state="deleted"))
    parts = tuple((file.file_id, number, b"x") for file in files for number in range(70))
    batches = (batch_row("over", is_over=True), batch_row("open"))
    store.write_batches(BatchChanges(files=files, parts=parts, batches=batches))
    store = reopened()
    store.begin_process()
    left = [store.find_file(file.file_id) for file in files]
    assert [file and file.state for file in left] == ["deleted", "partial", "ready", "deleted"]
    assert store.num_file_bytes() == 6
    for _ in range(3):
        store.sweep(400.0, max_jobs=1)
    assert store.find_file("file-cut") is None, "an upload that was cut short"
    for _ in range(9):
        store.sweep(600.0, max_jobs=1)
    assert [store.file_bytes(file.file_id) for file in files] == [0, 0, 70, 0]
    assert (store.find_batch("batch-over"), store.find_batch("batch-open")) == (None, batches[1])


def test_a_file_that_is_deleted_stays_so(reopened: Reopen) -> None:
    store = reopened()
    store.write_batches(BatchChanges(files=(file_row("1", filename="\0é"), file_row("2"))))
    store.write_batches(BatchChanges(files=(file_row("1", state="deleted"),)))
    assert store.list_files("me", Page(9), now=200.0) == [file_row("2")]
    assert store.find_file("file-\0") is store.find_batch("batch-\0") is None
    for _ in range(2):
        store.sweep(200.0, max_jobs=1)
    assert store.find_file("file-1") is None
