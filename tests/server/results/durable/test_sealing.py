"""Encrypted results: who can read them, what is left of deleted ones, and what is noticed of changes on disk."""

import base64
import contextlib
import dataclasses
import itertools
import json
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from fake_engine import FakeEngine
from kept_results import open_results
from postgres_server import PostgresServer

from splitfuse.engine.core.outputs import OutputDelta
from splitfuse.engine.errors import ConfigError
from splitfuse.server.api.listing import Page
from splitfuse.server.api.native.background import SavedGenerate
from splitfuse.server.app import build_app
from splitfuse.server.http.errors import ResultNotFoundError
from splitfuse.server.jobs.job import Job
from splitfuse.server.jobs.job_index import ResultLimits
from splitfuse.server.jobs.saved_request import SavedRequest
from splitfuse.server.results.durable.batch_rows import BatchChanges, BatchRow, FileRow
from splitfuse.server.results.durable.checksum import DamagedError
from splitfuse.server.results.durable.records import dump_segment, load_segment
from splitfuse.server.results.durable.resumption import Resumption
from splitfuse.server.results.durable.sealing import OVERHEAD_BYTES, Sealing
from splitfuse.server.results.durable.sqlite_store import SqliteStore
from splitfuse.server.settings import Settings

if TYPE_CHECKING:
    from splitfuse.engine.serving.submitted_request import SubmittedRequest

KEY = bytes(range(32))
PROMPT = "a secret of the prompt"
TEXT = "what was answered "
KINDS = {"generate": SavedGenerate(lambda stored: None)}
LIMITS = ResultLimits(ttl=60, max_results=99, max_bytes=10**9)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "results.db"


def opened(path: Path, key: bytes = KEY) -> Any:
    sealing = Sealing(key)
    return open_results(LIMITS, open_store=lambda: SqliteStore(path, sealing=sealing), kinds=KINDS, sealing=sealing)


async def keep(results: Any, *names: str, num_tokens: int = 3, has_ended: bool = False) -> None:
    """Jobs that tell a few tokens in turns, so that segments hold events of all."""
    jobs = [Job(name, model="m", owner="me") for name in names]
    handle, sinks = cast("SubmittedRequest", SimpleNamespace(prompt_token_ids=[104, 105], seed=1, parent=None)), []
    for job in jobs:
        results.add(job)
        sinks.append(results.sink(job))
        request = SavedRequest(kind="generate", body={"prompt": PROMPT, "max_tokens": num_tokens})
        await results.accept(job, handle, request, user="", fingerprint="fake")
    for number in range(num_tokens):
        reason = "length" if has_ended and number == num_tokens - 1 else None
        for job, sink in zip(jobs, sinks, strict=True):
            sink(OutputDelta(job.seq_id, 0, TEXT, (number,), finish_reason=reason))
        await results.backend.use(lambda store: None)


def bytes_of(path: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted(path.parent.glob(f"{path.name}*")))


def dumped(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return list(db.iterdump())


def as_a_kill_leaves_it(path: Path) -> Path:
    copy = path.with_name("copy.db")
    for suffix in ("", "-wal"):
        Path(f"{copy}{suffix}").write_bytes(Path(f"{path}{suffix}").read_bytes())
    return copy


def change(path: Path, statement: str, *values: object) -> None:
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        assert db.execute(statement, values).rowcount >= 1


async def test_nothing_that_tells_of_a_job_stands_in_the_files(path: Path) -> None:
    async with opened(path) as results:
        await keep(results, "done", has_ended=True)
        await keep(results, "open")
        before = bytes_of(path)
        for text in (PROMPT, TEXT, "prompt", '"generate"', "fake", "max_tokens"):
            assert text.encode() not in before, text
            assert base64.b64encode(text.encode()).rstrip(b"=")[:-1] not in before, text
        assert b"done" in before, "ids are in the clear"
    async with opened(path) as results:
        job = await results.find("done", owner="me")
        assert (job.outputs[0].text, job.outputs[0].token_ids) == (TEXT * 3, [0, 1, 2])
        resumed = results.backend.to_resume[0]
        assert (resumed.request["body"]["prompt"], resumed.resumed.outputs[0].token_ids) == (PROMPT, (0, 1, 2))


async def test_with_its_row_a_jobs_key_is_gone_from_all_files(path: Path) -> None:
    async with opened(path) as results:
        await keep(results, "kept", *(f"job{number}" for number in range(30)))
        rows = await results.backend.use(lambda store: store.unfinished())
        # Three bytes of the key are four characters of the row.
        keys = {row.seq_id: row.request[:80].encode() for row in rows}
        assert len(set(keys.values())) == 31
        assert all(key in bytes_of(path) for key in keys.values())
        for seq_id in keys.keys() - {"kept"}:
            await results.delete(results.get(seq_id, owner="me"))
        await results.backend.use(lambda store: store.sweep(0.0, max_jobs=9))
        data = bytes_of(path)
        assert [seq_id for seq_id, key in keys.items() if key in data] == ["kept"]
        bodies = await results.backend.use(lambda store: list(store.segments(0)))
        assert len([item for body in bodies for item in load_segment(body).events]) == 93, "they stay, and are noise"


async def test_a_key_whose_process_died_before_it_swept_is_gone_after_the_next_ones_first_sweep(path: Path) -> None:
    async with opened(path) as results:
        await keep(results, "job")
        row = await results.backend.use(lambda store: store.find("job"))
        assert row is not None
        await results.delete(results.get("job", owner="me"))
        copy = as_a_kill_leaves_it(path)
    assert row.request[:80].encode() in bytes_of(copy)
    store = SqliteStore(copy, sealing=Sealing(KEY))
    store.sweep(0.0, max_jobs=9)
    assert row.request[:80].encode() not in bytes_of(copy)
    store.close()


@pytest.mark.parametrize(("first", "second", "why"), [
    (KEY, None, "it is encrypted; give its key with --results-key-file FILE"),
    (KEY, bytes(32), "it is encrypted with another key than --results-key-file holds"),
    (None, KEY, "it is not encrypted; name a new one, or leave --results-key-file out"),
], ids=["without", "another", "too late"])  # fmt: skip
def test_a_store_opens_with_its_own_key_only(path: Path, first: bytes | None, second: bytes | None, why: str) -> None:
    for key in (first, first):
        SqliteStore(path, sealing=key and Sealing(key)).close()
    before = dumped(path)
    with pytest.raises(ConfigError, match=why) as refusal:
        SqliteStore(path, sealing=second and Sealing(second))
    assert "\n" not in str(refusal.value)
    assert dumped(path) == before
    SqliteStore(path, sealing=first and Sealing(first)).close()


def test_servers_on_one_database_have_one_key(postgres: PostgresServer) -> None:
    from splitfuse.server.results.shared.postgres_store import PostgresStore

    database = postgres.database()

    def store(key: bytes | None) -> None:
        sealing = key and Sealing(key)
        PostgresStore(database, url="http://here", model="", lease_s=60, sealing=sealing).close()

    for key in (KEY, KEY):
        store(key)
    with pytest.raises(ConfigError, match=r"--results postgresql://…: it is encrypted; give its key"):
        store(None)
    with pytest.raises(ConfigError, match="with another key"):
        store(bytes(32))
    database = postgres.database()
    store(None)
    with pytest.raises(ConfigError, match="it is not encrypted"):
        store(KEY)


async def test_jobs_in_a_database_are_taken_over_by_a_server_with_the_key(postgres: PostgresServer) -> None:
    import psycopg

    from splitfuse.server.results.shared.postgres_store import PostgresStore

    database, sealing = postgres.database(), Sealing(KEY)

    def shared() -> Any:
        def open_store() -> PostgresStore:
            return PostgresStore(database, url="http://here", model="", lease_s=60, sealing=sealing)

        return open_results(LIMITS, open_store=open_store, kinds=KINDS, sealing=sealing)

    async with shared() as results:
        await keep(results, "open", "other")
        with psycopg.connect(database) as db:
            tables = [db.execute(f"SELECT * FROM splitfuse_{name}").fetchall() for name in ("jobs", "segments")]
        assert all(tables)
        for text in (PROMPT, TEXT):
            assert text not in str(tables)
    async with shared() as results:
        told = {begun.row.seq_id: begun.resumed.outputs[0].token_ids for begun in results.backend.to_resume}
        assert told == {"open": (0, 1, 2), "other": (0, 1, 2)}


# What an attacker, or a fault, does to the file of two jobs that have ended: a statement for the first.
FINISHED = {
    "a changed result": "UPDATE jobs SET result = substr(result, 1, length(result) - 8) || 'AAAAAAA='",
    "a result of another job": "UPDATE jobs SET result = (SELECT result FROM jobs WHERE seq_id = 'b')",
    "a request of another job": "UPDATE jobs SET request = (SELECT request FROM jobs WHERE seq_id = 'b')",
    "both of another job": "UPDATE jobs SET (request, result) = (SELECT request, result FROM jobs WHERE seq_id = 'b')",
    "a request as the result": "UPDATE jobs SET result = request",
    "a result in the clear": "UPDATE jobs SET result = '[[0,\"forged\",[1]]]'",
    "nothing": "UPDATE jobs SET result = ''",
}


@pytest.mark.parametrize("statement", FINISHED.values(), ids=FINISHED)
async def test_a_result_that_was_changed_on_disk_fails_alone(path: Path, statement: str) -> None:
    async with opened(path) as results:
        await keep(results, "a", "b", has_ended=True)
    change(path, f"{statement} WHERE seq_id = 'a'")
    async with opened(path) as results:
        job = await results.find("a", owner="me")
        assert (job.status, job.outputs[0].text) == ("failed", "")
        failure = job.failure()
        assert isinstance(failure, DamagedError)
        assert (failure.code, "changed on disk" in str(failure)) == ("damaged", True)
        assert (await results.find("b", owner="me")).outputs[0].text == TEXT * 3
        listed = await results.page("me", after=None, limit=9, status=None)
        assert sorted((row.seq_id, row.status) for row in listed) == [("a", "failed"), ("b", "completed")]
        assert await results.delete_all("me") == {"a", "b"}


async def test_another_owner_cannot_be_written_into_the_file(path: Path) -> None:
    async with opened(path) as results:
        await keep(results, "a", has_ended=True)
    change(path, "UPDATE jobs SET owner = 'thief'")
    async with opened(path) as results:
        with pytest.raises(ResultNotFoundError):
            await results.find("a", owner="me")
        assert (await results.find("a", owner="thief")).status == "failed"


def swapped(bodies: list[bytes]) -> list[bytes]:
    """Two segments in the other order."""
    return [*bodies[1::-1], *bodies[2:]]


def exchanged(bodies: list[bytes]) -> list[bytes]:
    """Return the events of a and b, whose numbers are 1 and 2, in every segment."""
    return [
        edited(body, lambda events: [(3 - num if num < 3 else num, item) for num, item in events]) for body in bodies
    ]


def without_first(bodies: list[bytes]) -> list[bytes]:
    return [edited(bodies[0], lambda events: []), *bodies[1:]]


def repeated(bodies: list[bytes]) -> list[bytes]:
    return [edited(body, lambda events: events * 2) for body in bodies]


def in_the_clear(bodies: list[bytes]) -> list[bytes]:
    return [edited(body, lambda events: [(num, [0, "forged", [1]]) for num, _ in events]) for body in bodies]


def edited(body: bytes, edit: Callable[[list[tuple[int, object]]], object]) -> bytes:
    segment = load_segment(body)
    events = edit([(num, item) for num, item in segment.events if num < 3])
    others = [(num, item) for num, item in segment.events if num >= 3]
    return dump_segment([*events, *others], wall=segment.wall, monotonic=segment.monotonic)  # type: ignore[misc]


@pytest.mark.parametrize("damage", [swapped, exchanged, without_first, repeated, in_the_clear])
async def test_a_job_whose_events_were_changed_on_disk_fails_alone(
    path: Path, damage: Callable[[list[bytes]], list[bytes]]
) -> None:
    async with opened(path) as results:
        await keep(results, "a", "b")
        await keep(results, "c")
        bodies: list[bytes] = await results.backend.use(lambda store: list(store.segments(0)))
    for number, body in enumerate(damage(bodies), 1):
        change(path, "UPDATE segments SET body = ? WHERE num = ?", body, number)
    await fails_alone(path, {"a", "b"})


async def test_a_job_whose_request_was_changed_on_disk_fails_alone(path: Path) -> None:
    async with opened(path) as results:
        await keep(results, "a", "b", "c")
    with contextlib.closing(sqlite3.connect(path)) as db:
        requests = dict(db.execute("SELECT seq_id, request FROM jobs").fetchall())
    change(path, "UPDATE jobs SET request = ? WHERE seq_id = 'a'", requests["b"])
    change(path, "UPDATE jobs SET request = ? WHERE seq_id = 'b'", requests["a"])
    await fails_alone(path, {"a", "b"})


async def fails_alone(path: Path, seq_ids: set[str]) -> None:
    async with opened(path) as results:
        jobs = {begun.row.seq_id: begun for begun in results.backend.to_resume}
        assert {seq_id for seq_id, begun in jobs.items() if begun.is_damaged} == seq_ids
        resumed: list[str] = []

        class Engine(FakeEngine):
            async def submit(self, *args: object, request_id: str, **options: object) -> object:  # type: ignore[override]
                resumed.append(request_id)
                return self.handles.setdefault(request_id, object())  # type: ignore[arg-type]

        with contextlib.suppress(AttributeError):  # it gives no handle
            await Resumption(results.backend, Engine(), KINDS, Settings()).run()  # type: ignore[arg-type]
        assert resumed == ["c"]
        await results.backend.use(lambda store: None)
        for seq_id in seq_ids:
            failure = jobs[seq_id].kept.job.failure()
            assert "interrupted: its stored events were changed on disk" in str(failure)
    async with opened(path) as results:
        assert {begun.row.seq_id for begun in results.backend.to_resume}.isdisjoint(seq_ids)
        for seq_id in seq_ids:
            assert (await results.find(seq_id, owner="me")).status == "failed"


# Files and batches.

FILE = FileRow("file-1", "me", 100.0, 500.0, "batch", "names are secret.jsonl", 3, 1)
BATCH = BatchRow("batch-1", "me", 100.0, 500.0, '{"metadata":"secret"}')


def filled(path: Path) -> SqliteStore:
    store = SqliteStore(path, sealing=Sealing(KEY))
    other = dataclasses.replace(FILE, file_id="file-2")
    parts = [(file.file_id, number, b"a secret line %d" % number) for file in (FILE, other) for number in (0, 1)]
    batches = (BATCH, dataclasses.replace(BATCH, batch_id="batch-2"))
    store.write_batches(BatchChanges(files=(FILE, other), parts=tuple(parts), batches=batches))
    return store


def test_nothing_that_tells_of_a_file_or_a_batch_stands_in_the_files(path: Path) -> None:
    store = filled(path)
    assert b"secret" not in bytes_of(path)
    assert b"file-1" in bytes_of(path)
    assert store.parts("file-1", after=-1, limit=9) == [(0, b"a secret line 0"), (1, b"a secret line 1")]
    assert store.file_bytes("file-1") == 30, "as the client counts them"
    store.close()


def test_with_a_file_its_key_is_gone_before_its_parts_are(path: Path) -> None:
    store = filled(path)
    key = store._db.execute("SELECT substr(filename, 1, 80) FROM files").fetchone()[0].encode()
    assert key in bytes_of(path)
    store.write_batches(BatchChanges(files=(dataclasses.replace(FILE, state="deleted"),)))
    assert store.parts("file-1", after=-1, limit=9) == []
    store.write_batches(BatchChanges(parts=(("file-1", 7, b"a late line"),)))
    assert store.num_parts("file-1") == 2, "nothing is added that could not be read"
    found = store.find_file("file-1")
    assert found is not None
    assert (found.state, found.filename) == ("deleted", "")
    store.sweep(200.0, max_jobs=9)
    assert key not in bytes_of(path)
    store.sweep(900.0, max_jobs=9)
    assert not store.list_files("me", Page(9), now=0.0), "the others have expired"
    assert store._db.execute("SELECT count(*) FROM files WHERE filename != ''").fetchone()[0] == 0
    store.close()


def test_files_and_batches_in_a_database_are_encrypted_too(postgres: PostgresServer) -> None:
    import psycopg

    from splitfuse.server.results.shared.postgres_store import PostgresStore

    database, sealing = postgres.database(), Sealing(KEY)
    store, other = (PostgresStore(database, url="http://here", model="", lease_s=60, sealing=sealing) for _ in range(2))
    batches = (BATCH, dataclasses.replace(BATCH, batch_id="batch-2"))
    parts = tuple(("file-1", number, b"a secret line %d" % number) for number in (0, 1))
    store.write_batches(BatchChanges(files=(FILE,), parts=parts, batches=batches))
    with psycopg.connect(database, autocommit=True, client_encoding="utf8") as db:
        tables = [
            db.execute(f"SELECT * FROM splitfuse_{name}").fetchall() for name in ("files", "file_parts", "batches")
        ]
        assert all(tables)
        assert "secret" not in str(tables)
        assert other.parts("file-1", after=-1, limit=9) == [(number, body) for _, number, body in parts]
        assert (other.find_file("file-1"), other.find_batch("batch-1"), other.file_bytes("file-1")) == (FILE, BATCH, 30)
        db.execute("UPDATE splitfuse_batches SET body = 'forged' WHERE batch_id = 'batch-1'")
        store.release_batches()
        assert [batch.batch_id for batch in other.claim_batches(limit=9)] == ["batch-2"], "the other is left alone"
        with pytest.raises(DamagedError):
            other.find_batch("batch-1")
        other.write_batches(BatchChanges(files=(dataclasses.replace(FILE, state="deleted"),)))
        assert other.parts("file-1", after=-1, limit=9) == []
        assert db.execute("SELECT filename, state FROM splitfuse_files").fetchall() == [("", "deleted")]
    for database in (store, other):
        database.close()


def test_a_file_or_a_batch_that_was_changed_on_disk_fails_alone(path: Path) -> None:
    filled(path).close()
    change(path, "UPDATE file_parts SET number = 1 - number + 10 WHERE file_id = 'file-1'")
    change(path, "UPDATE batches SET body = (SELECT body FROM batches WHERE batch_id = 'batch-2') WHERE num = 1")
    store = SqliteStore(path, sealing=Sealing(KEY))
    with pytest.raises(DamagedError):
        store.parts("file-1", after=-1, limit=9)
    assert len(store.parts("file-2", after=-1, limit=9)) == 2
    with pytest.raises(DamagedError):
        store.find_batch("batch-1")
    assert [batch.batch_id for batch in store.unfinished_batches()] == ["batch-2"]
    assert [batch.batch_id for batch in store.list_batches("me", Page(9), now=0.0)] == ["batch-2"]
    store.close()


# The key file, and the primitive.


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("text", [KEY.hex(), KEY.hex().upper() + "\n", base64.b64encode(KEY).decode() + "\n"])
def test_a_key_file_holds_base64_or_hexadecimal_digits(tmp_path: Path, text: str) -> None:
    sealing = Sealing.read(write(tmp_path / "key", text, 0o640))  # Kubernetes gives secrets to a group
    assert sealing.has_made(Sealing(KEY).mark())


@pytest.mark.parametrize(
    "text", ["", "ä", KEY[1:].hex(), KEY.hex() + "00", "zz" * 32, base64.b64encode(KEY[1:]).decode()]
)
def test_a_key_file_that_holds_something_else_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"must hold 32 bytes as base64 .*openssl rand -base64 32 > ") as refusal:
        Sealing.read(write(tmp_path / "key", text))
    assert text not in str(refusal.value) or not text, "a key is told nowhere"


def test_a_key_file_that_is_missing_or_open_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "key"
    with pytest.raises(ConfigError, match=r"no such file; make one .*openssl rand -base64 32 > \S+key\)$"):
        Sealing.read(path)
    with pytest.raises(ConfigError, match=r"every user can read it: chmod 600 \S+key$"):
        Sealing.read(write(path, KEY.hex(), 0o644))
    with pytest.raises(ConfigError, match="cannot be read"):
        Sealing.read(tmp_path)


def test_a_key_without_results_on_disk_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--results-key-file needs --results FILE"):
        Settings(results_key_file="key")


def test_a_missing_package_is_one_line_that_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.ciphers.aead", None)
    settings = Settings(results=str(tmp_path / "r.db"), results_key_file=str(write(tmp_path / "key", KEY.hex())))
    with pytest.raises(ConfigError, match=r"--results-key-file .*: pip install cryptography$"):
        build_app(settings)


def test_what_is_sealed_opens_in_its_own_place_only() -> None:
    sealing = Sealing(KEY)
    owners, ids, names = ("me", "you"), ("a", "b"), ("request", "result")
    places = list(itertools.product(owners, ids, names))
    for owner, item_id, name in places:
        text = sealing.new_seal(owner, item_id).seal_text(name, "secret")
        for place in places:
            if place == (owner, item_id, name):
                assert sealing.open_text(*place, text)[0] == "secret"
            else:
                with pytest.raises(DamagedError):
                    sealing.open_text(*place, text)


def test_every_bit_and_every_length_counts() -> None:
    seal = Sealing(KEY).new_seal("me", "a")
    sealed = seal.seal("x", b"secret")
    assert len(sealed) == 6 + OVERHEAD_BYTES
    for bit in range(8 * len(sealed)):
        changed = bytearray(sealed)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(DamagedError):
            seal.open("x", bytes(changed))
    for length in range(len(sealed)):
        with pytest.raises(DamagedError):
            seal.open("x", sealed[:length])


def test_nothing_is_sealed_with_the_same_key_or_nonce_twice() -> None:
    sealing = Sealing(KEY)
    seal = sealing.new_seal("me", "a")
    assert len({seal.seal("x", b"same")[:12] for _ in range(5000)}) == 5000
    assert len({sealing.new_seal("me", "a").seal_text("x", "same") for _ in range(100)}) == 100
    events = [[0, "é", [1]], [1, "x", [2], {"finish": ["length", None]}]]
    assert json.dumps(seal.open_events(3, seal.seal_events(3, events))) == json.dumps(events)
