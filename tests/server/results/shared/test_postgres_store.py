"""Leases, claims and refused writes of dead servers, on which servers that share a database rely."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

import pytest

psycopg = pytest.importorskip("psycopg", reason="needs psycopg: pip install 'psycopg[binary]'")

from postgres_server import PostgresServer  # noqa: E402

from splitfuse.engine.errors import ConfigError  # noqa: E402
from splitfuse.server.api.listing import Page  # noqa: E402
from splitfuse.server.results.durable.batch_rows import BatchChanges, BatchRow, FileRow, LinesDone  # noqa: E402
from splitfuse.server.results.durable.records import Changes, Ending, JobRow  # noqa: E402
from splitfuse.server.results.durable.store import StoreError  # noqa: E402
from splitfuse.server.results.shared.postgres_store import PostgresStore  # noqa: E402
from splitfuse.server.results.shared.schema import SCHEMA_VERSION  # noqa: E402

Open = Callable[..., PostgresStore]
# As it was before there were batches.
VERSION_1 = """
CREATE TABLE splitfuse_meta (version INTEGER NOT NULL);
INSERT INTO splitfuse_meta VALUES (1);
CREATE TABLE splitfuse_holders (
  num BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, url TEXT NOT NULL, expires TIMESTAMPTZ NOT NULL,
  is_dead BOOLEAN NOT NULL DEFAULT FALSE);
CREATE TABLE splitfuse_jobs (
  num BIGINT PRIMARY KEY, seq_id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, created DOUBLE PRECISION NOT NULL,
  request TEXT NOT NULL, first_segment BIGINT NOT NULL, is_running BOOLEAN NOT NULL,
  num_attempts INTEGER NOT NULL, num_crashes INTEGER NOT NULL, status TEXT, finished DOUBLE PRECISION,
  expires DOUBLE PRECISION, result TEXT, idempotency_key BYTEA, body_digest BYTEA,
  holder BIGINT NOT NULL, model TEXT NOT NULL);
CREATE INDEX splitfuse_jobs_unfinished ON splitfuse_jobs (created, num) WHERE status IS NULL;
CREATE INDEX splitfuse_jobs_expiring ON splitfuse_jobs (expires) WHERE status IS NOT NULL;
CREATE INDEX splitfuse_jobs_of_owner ON splitfuse_jobs (owner, created, seq_id);
CREATE UNIQUE INDEX splitfuse_jobs_by_key ON splitfuse_jobs (owner, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
CREATE TABLE splitfuse_segments (
  num BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, holder BIGINT NOT NULL, part BIGINT NOT NULL,
  body BYTEA NOT NULL, UNIQUE (holder, part));
CREATE TABLE splitfuse_webhooks (
  seq_id TEXT PRIMARY KEY, target TEXT NOT NULL, status TEXT NOT NULL, finished DOUBLE PRECISION NOT NULL,
  num_tries INTEGER NOT NULL, next_try DOUBLE PRECISION NOT NULL);
INSERT INTO splitfuse_jobs VALUES
  (1, 'done', 'me', 1, '{}', 1, FALSE, 1, 0, 'completed', 2, 9e9, '[]', NULL, NULL, 1, 'm');
"""


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """Return a database for all tests, which leave nothing behind."""
    return postgres.database()


@pytest.fixture
def opened(database: str) -> Iterator[Open]:
    """Yield a function that opens stores of servers that share the database."""
    with contextlib.ExitStack() as stack:

        def open_store(*, lease_s: float = 60.0, model: str = "m", **options: bool) -> PostgresStore:
            store = PostgresStore(database, url="http://one", model=model, lease_s=lease_s, **options)
            stack.callback(store.close)
            return store

        yield open_store
        tables = ["jobs", "segments", "holders", "files", "file_parts", "batches", "begun_lines"]
        run(database, f"TRUNCATE {', '.join(f'splitfuse_{table}' for table in tables)} RESTART IDENTITY")


def run(database: str, statement: str) -> None:
    with psycopg.connect(database, autocommit=True) as db:
        db.execute(statement)


def row(store: PostgresStore, num: int, **changed: object) -> JobRow:
    num += store.last_numbers()[0]
    plain = JobRow(num=num, seq_id=f"job{num}", owner="me", created=float(num), request="{}", first_segment=1)
    return dataclasses.replace(plain, **changed)  # type: ignore[arg-type]


def expire(database: str, store: PostgresStore) -> None:
    run(database, f"UPDATE splitfuse_holders SET expires = now() - interval '1s' WHERE num = {store.holder.num}")


def claimed(store: PostgresStore, *, limit: int | None = None) -> list[int]:
    with store.claiming(limit=limit) as rows:
        return [row.num for row in rows]


def test_a_dead_server_writes_nothing(opened: Open, database: str) -> None:
    dead, alive = opened(), opened()
    mine, another = row(dead, 1), row(dead, 2)
    dead.commit(Changes(accepted=[mine, another], segment=(1, b"before")))
    assert (claimed(alive), alive.holder_of(mine.seq_id)) == ([], dead.holder)
    expire(database, dead)
    assert alive.holder_of(mine.seq_id) is None, "it is not asked any more"
    dead.commit(Changes(segment=(2, b"late")))  # nothing has been taken over yet
    assert alive.beat()
    assert claimed(alive) == [mine.num, another.num]
    assert (alive.holder_of(mine.seq_id), dead.beat()) == (alive.holder, False)
    for changes in (
        Changes(segment=(3, b"x")),
        Changes(accepted=[row(dead, 3)]),
        Changes(endings=[Ending(mine.num, "completed", 1.0, 2.0, "[]")]),
        Changes(begun=[mine.num]),
        Changes(deleted=[mine.seq_id]),
    ):
        with pytest.raises(StoreError, match="took this one's jobs over"):
            dead.commit(changes)
    with pytest.raises(StoreError), dead.claiming(limit=1):
        pass
    with pytest.raises(StoreError):
        dead.end_process()
    found = alive.find(mine.seq_id)
    assert found is not None
    assert (found.status, found.num_attempts, found.num_crashes, found.is_running) == (None, 2, 1, False)
    assert list(alive.segments(0)) == [b"before", b"late"]


def test_each_job_is_claimed_by_one_server(opened: Open, database: str) -> None:
    dead, living = opened(), [opened() for _ in range(4)]
    dead.commit(Changes(accepted=[row(dead, num) for num in range(100)]))
    dead.end_process()
    taken: list[list[int]] = [[] for _ in living]

    def claim(store: PostgresStore, nums: list[int]) -> None:
        while new := claimed(store, limit=7):
            nums += new

    threads = [threading.Thread(target=claim, args=args) for args in zip(living, taken, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    base = dead.last_numbers()[0]
    assert sorted(num for nums in taken for num in nums) == list(range(base, base + 100))
    assert not any(job.num_crashes for job in living[0].unfinished()), "it had ended properly"


def test_what_ran_when_an_engine_died_counts_a_crash_and_is_claimed_at_once(opened: Open) -> None:
    dead, alive = opened(), opened()
    dead.commit(Changes(accepted=[row(dead, 1)]))
    begin(dead, "a")
    dead.write_batches(BatchChanges(begun=(("a", 1),)))
    dead.end_process(has_crashed=True)
    assert len(claimed(alive)) == 1
    assert [job.num_crashes for job in alive.unfinished()] == [1]
    assert held(alive) == ["a"]
    assert alive.lines_done("a", "out-a", "err-a").num_crashes == {1: 1}


def test_a_claim_that_fails_is_none(opened: Open) -> None:
    dead, alive, other_model = opened(), opened(), opened(model="another")
    dead.commit(Changes(accepted=[row(dead, 1)]))
    dead.end_process()
    assert claimed(other_model) == [], "it could not go on with it"
    with pytest.raises(ZeroDivisionError), alive.claiming(limit=1):
        raise ZeroDivisionError
    assert len(claimed(alive)) == 1


def test_no_server_is_given_up_by_one_that_was_not_heard_of_itself(opened: Open, database: str) -> None:
    first, second = opened(), opened()
    expire(database, first)
    expire(database, second)
    assert first.beat(), "the database was away; both are alive"
    assert second.beat()


def test_a_server_that_stops_within_a_transaction_is_given_up_too(opened: Open) -> None:
    stopped, alive = opened(lease_s=0.5), opened()
    stopped.commit(Changes(accepted=[row(stopped, 1)]))
    num = stopped.holder.num

    def stop_within() -> None:
        with stopped.claiming(limit=1):  # its row is locked until the database ends its session
            deadline = time.monotonic() + 120
            while not claimed(alive):
                assert alive.beat()
                assert time.monotonic() < deadline

    with pytest.raises(StoreError):
        stop_within()
    assert [job.num >> 32 for job in alive.unfinished()] == [num]


def test_what_is_written_again_is_there_once(opened: Open, database: str) -> None:
    store = opened()
    store.commit(Changes(segment=(1, b"as far as is known it was not written")))
    run(database, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    with pytest.raises(StoreError):
        store.commit(Changes(segment=(1, b"all")))
    store.commit(Changes(segment=(1, b"all"), accepted=[row(store, 1)]))
    assert list(store.segments(0)) == [b"all"]
    assert store.unfinished() == [row(store, 1, first_segment=2)]


def test_segments_are_kept_for_jobs_of_any_server(opened: Open) -> None:
    first, second = opened(), opened()
    first.commit(Changes(segment=(1, b"ended")))
    second.commit(Changes(accepted=[row(second, 1)]))
    second.commit(Changes(segment=(1, b"needed")))
    first.sweep(0.0, max_jobs=1)
    assert list(first.segments(0)) == [b"needed"]


def test_a_lock_is_one_servers(opened: Open) -> None:
    first, second = opened(), opened()
    assert first.try_lock(-(2**63))
    assert not second.try_lock(-(2**63))
    first.unlock(-(2**63))
    assert second.try_lock(-(2**63))


def batch(name: str, **changed: object) -> BatchRow:
    return dataclasses.replace(BatchRow(name, "me", 1.0, 9e9, "{}"), **changed)  # type: ignore[arg-type]


def file(name: str, **changed: object) -> FileRow:
    plain = FileRow(name, "me", 1.0, 9e9, "batch_output", "f", 0, 0, "partial")
    return dataclasses.replace(plain, **changed)  # type: ignore[arg-type]


def begin(store: PostgresStore, *names: str) -> None:
    """Begin batches with files for their answers."""
    outputs = tuple((f"{kind}-{name}", name) for name in names for kind in ("out", "err"))
    files = tuple(file(file_id) for file_id, _ in outputs)
    store.write_batches(BatchChanges(files=files, batches=tuple(map(batch, names)), outputs=outputs))


def held(store: PostgresStore, *, limit: int | None = None) -> list[str]:
    return [row.batch_id for row in store.claim_batches(limit=limit)]


def test_a_batch_of_a_dead_server_is_another_ones(opened: Open, database: str) -> None:
    dead, alive = opened(), opened()
    begin(dead, "a", "b")
    dead.write_batches(BatchChanges(begun=(("a", 1), ("a", 2)), parts=(("out-a", 0, b"kept"),), answered=(("a", 1),)))
    assert (held(alive), alive.batch_holder("a"), dead.held_batches()) == ([], dead.holder, {"a", "b"})
    expire(database, dead)
    assert alive.batch_holder("a") is None
    assert held(alive) == [], "nobody has given it up"
    assert alive.beat()
    assert held(alive) == ["a", "b"]
    assert (alive.batch_holder("a"), alive.held_batches()) == (alive.holder, {"a", "b"})
    assert alive.lines_done("a", "out-a", "err-a") == LinesDone(frozenset({0}), frozenset(), {2: 1})
    alive.write_batches(BatchChanges(parts=(("out-a", 2, b"its own"),), begun=(("a", 3),)))
    assert alive.parts("out-a", after=-1, limit=9) == [(0, b"kept"), (2, b"its own")]
    with pytest.raises(StoreError, match="took this one's jobs over"):
        dead.write_batches(BatchChanges(parts=(("out-a", 3, b"x"),)))
    for change in (dead.release_batches, dead.end_process, lambda: dead.claim_batches(limit=1)):
        with pytest.raises(StoreError):
            change()


def test_what_a_server_writes_of_a_batch_that_it_does_not_hold_hits_no_row(opened: Open) -> None:
    """The server lost its lease, has a new one, and has not noticed yet that its batch is another server's."""
    holder, other = opened(), opened()
    begin(holder, "a")
    holder.write_batches(BatchChanges(begun=(("a", 1),)))
    other.write_batches(
        BatchChanges(
            files=(file("out-a", state="ready", num_lines=1), file("new")),
            parts=(("out-a", 1, b"x"), ("new", 1, b"x")),
            batches=(batch("a", body='{"late":1}', is_over=True),),
            begun=(("a", 2),),
            answered=(("a", 1),),
            outputs=(("out-a", "a"), ("new", "a")),
        )
    )
    assert (holder.find_batch("a"), holder.find_file("out-a")) == (batch("a"), file("out-a"))
    assert (holder.find_file("new"), holder.num_parts("new")) == (None, 0)
    assert holder.lines_done("a", "out-a", "err-a") == LinesDone(frozenset(), frozenset(), {1: 0})


def test_each_batch_is_claimed_by_one_server(opened: Open) -> None:
    dead, living = opened(), [opened() for _ in range(4)]
    names = [f"batch-{number}" for number in range(40)]
    begin(dead, *names)
    dead.end_process()
    taken: list[list[str]] = [[] for _ in living]

    def claim(store: PostgresStore, batch_ids: list[str]) -> None:
        while new := held(store, limit=3):
            batch_ids += new

    threads = [threading.Thread(target=claim, args=args) for args in zip(living, taken, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    assert sorted(batch_id for batch_ids in taken for batch_id in batch_ids) == sorted(names)
    for store, batch_ids in zip(living, taken, strict=True):
        assert store.held_batches() == {*batch_ids}


def test_a_batch_that_is_let_go_counts_no_crash(opened: Open) -> None:
    first, second, other_model = opened(), opened(), opened(model="another")
    begin(first, "a")
    first.write_batches(BatchChanges(begun=(("a", 1),)))
    first.release_batches()
    assert first.held_batches() == set()
    assert held(other_model) == [], "it could not go on with it"
    assert held(second) == ["a"]
    assert second.lines_done("a", "out-a", "err-a").num_crashes == {1: 0}
    second.write_batches(BatchChanges(begun=(("a", 1),)))
    second.end_process()
    assert held(first) == ["a"]
    assert first.lines_done("a", "out-a", "err-a").num_crashes == {1: 0}


def test_a_batch_whose_holder_is_forgotten_is_claimed(opened: Open, database: str) -> None:
    dead, alive = opened(), opened()
    begin(dead, "a")
    run(database, f"DELETE FROM splitfuse_holders WHERE num = {dead.holder.num}")
    assert held(alive) == ["a"], "a server of an earlier version sweeps holders without jobs"


def test_an_upload_that_was_cut_short_is_swept(opened: Open, database: str) -> None:
    dead, alive = opened(), opened()
    upload = file("cut", purpose="batch", num_bytes=2)
    dead.write_batches(BatchChanges(files=(upload, file("ready", purpose="batch", state="ready"))))
    dead.write_batches(BatchChanges(parts=(("cut", 0, b"x"),)))
    alive.sweep(2.0, max_jobs=1)
    assert (alive.find_file("cut"), alive.num_file_bytes()) == (upload, 2), "it is still coming in"
    expire(database, dead)
    assert alive.beat()
    alive.sweep(2.0, max_jobs=1)
    assert (alive.find_file("cut"), alive.num_parts("cut"), alive.num_file_bytes()) == (None, 0, 0)
    assert [found.file_id for found in alive.list_files("me", Page(9), now=2.0)] == ["ready"]


def test_one_server_sweeps_at_a_time(opened: Open, database: str) -> None:
    first, second = opened(), opened()
    expired = file("old", state="ready", expires=1.0)
    first.write_batches(BatchChanges(files=(expired,)))
    with psycopg.connect(database) as db:
        db.execute("SELECT pg_advisory_xact_lock(%s)", (0x7377656570,))
        second.sweep(2.0, max_jobs=1)
        assert second.find_file("old") == expired
    second.sweep(2.0, max_jobs=1)
    assert second.find_file("old") is None


def test_tables_of_the_first_version_are_brought_to_this_one(postgres: PostgresServer) -> None:
    database, fresh = postgres.database(), postgres.database()
    run(database, VERSION_1)
    for url in (database, fresh):
        PostgresStore(url, url="http://one", model="m", lease_s=60).close()
    assert tables(database) == tables(fresh)
    store = PostgresStore(database, url="http://one", model="m", lease_s=60)
    found = store.find("done")
    assert found is not None
    assert (found.status, found.result) == ("completed", "[]")
    begin(store, "a")
    assert store.unfinished_batches() == [batch("a")]
    store.close()


def tables(database: str) -> list[tuple[object, ...]]:
    columns = "SELECT table_name, column_name, data_type, is_nullable FROM information_schema.columns"
    with psycopg.connect(database) as db:
        found = db.execute(f"{columns} WHERE table_schema = 'public' ORDER BY table_name, ordinal_position").fetchall()
        found += db.execute("SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1")
        return [*found, *db.execute("SELECT version FROM splitfuse_meta")]


def test_a_later_format_is_refused(opened: Open, database: str) -> None:
    opened()
    run(database, f"UPDATE splitfuse_meta SET version = {SCHEMA_VERSION + 1}")
    with pytest.raises(ConfigError, match=f"format {SCHEMA_VERSION + 1}, this one knows {SCHEMA_VERSION}"):
        opened()
    run(database, f"UPDATE splitfuse_meta SET version = {SCHEMA_VERSION}")


def test_a_database_that_cannot_be_reached_is_one_line_without_the_password() -> None:
    with pytest.raises(ConfigError, match="PostgreSQL says: ") as refusal:
        PostgresStore("postgresql://me:secret@127.0.0.1:1/x", url="http://one", model="m", lease_s=60)
    assert "\n" not in str(refusal.value)
    assert "secret" not in str(refusal.value)
