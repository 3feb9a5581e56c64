"""What servers that share a database rely on: leases, claims, and that nothing of a dead server is written."""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator

import pytest

psycopg = pytest.importorskip("psycopg", reason="needs psycopg: pip install 'psycopg[binary]'")

from postgres_server import PostgresServer  # noqa: E402

from splitfuse.engine.errors import ConfigError  # noqa: E402
from splitfuse.server.storage.postgres_store import SCHEMA_VERSION, PostgresStore  # noqa: E402
from splitfuse.server.storage.records import Changes, Ending, JobRow  # noqa: E402
from splitfuse.server.storage.store import StoreError  # noqa: E402

Open = Callable[..., PostgresStore]


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> str:
    """One for all tests, which leave nothing behind."""
    return postgres.database()


@pytest.fixture
def opened(database: str) -> Iterator[Open]:
    """Opens stores of servers that share the database."""
    with contextlib.ExitStack() as stack:

        def open_store(*, lease_s: float = 60.0, model: str = "m", **options: bool) -> PostgresStore:
            store = PostgresStore(database, url="http://one", model=model, lease_s=lease_s, **options)
            stack.callback(store.close)
            return store

        yield open_store
        run(database, "TRUNCATE splitfuse_jobs, splitfuse_segments, splitfuse_holders RESTART IDENTITY")


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

    threads = [threading.Thread(target=claim, args=each) for each in zip(living, taken, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    base = dead.last_numbers()[0]
    assert sorted(num for nums in taken for num in nums) == list(range(base, base + 100))
    assert not any(job.num_crashes for job in living[0].unfinished()), "it had ended properly"


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
            deadline = time.monotonic() + 20
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
