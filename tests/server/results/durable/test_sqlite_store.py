"""SqliteStore where power or the disk fails: what a commit returned for is there, whole; nothing else is."""

import contextlib
import dataclasses
import resource
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.server.results.durable import sqlite_store
from splitfuse.server.results.durable.batch_rows import BatchChanges, BatchRow, FileRow
from splitfuse.server.results.durable.records import Changes, Ending, JobRow
from splitfuse.server.results.durable.sqlite_store import SqliteStore
from splitfuse.server.results.durable.store import StoreError

PAGE = 512  # bytes, SQLite's smallest: a log has many pages then, and few bytes
FRAME = 24 + PAGE  # bytes of a frame of the log, after the log's header
HEADER = 32
Step = Callable[[SqliteStore], Any]
Rows = dict[str, list[tuple[Any, ...]]]


def row(num: int) -> JobRow:
    request = f"{num}" * 600  # more than a page
    return JobRow(num=num, seq_id=f"job{num}", owner="me", created=100.0 + num, request=request, first_segment=num)


def step(num: int) -> Step:
    """Return the function that commits transaction `num`, one of all kinds."""
    ending = Ending(num - 1, "completed", 200.0, 500.0, "r" * 700)
    file = FileRow(f"file{num}", "me", 100.0, 500.0, "batch", "f", 3, 1)
    batch = BatchRow(f"batch{num}", "me", 100.0, 500.0, "{}")
    steps: list[Step] = [
        lambda store: store.commit(Changes(accepted=[row(num)], segment=(num, b"%d" % num * 900))),
        lambda store: store.commit(Changes(segment=(num, b"x"), endings=[ending], accepted=[row(num)])),
        lambda store: store.write_batches(BatchChanges(files=(file,), parts=((file.file_id, 0, b"p" * 800),))),
        lambda store: store.write_batches(BatchChanges(batches=(batch,), begun=((batch.batch_id, 1),))),
        lambda store: store.commit(Changes(deleted=[f"job{num - 3}"])),
        lambda store: store.begin_process(),
    ]
    return steps[num % len(steps)]


def begin(num: int) -> Step:
    """Return the function that commits a transaction of one page."""
    return lambda store: store.commit(Changes(begun=[num]))


def small_store(path: Path) -> SqliteStore:
    """Return an empty store of small pages."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(
            f"PRAGMA page_size = {PAGE}; PRAGMA auto_vacuum = INCREMENTAL; CREATE TABLE x (y); DROP TABLE x"
        )
    return SqliteStore(path)


def log_of(path: Path) -> Path:
    return Path(f"{path}-wal")


def rows_of(db: sqlite3.Connection) -> Rows:
    """Return the rows of all tables that are not empty."""
    tables = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")]
    rows = {name: db.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
    return {name: found for name, found in rows.items() if found}


def rows_after(path: Path, data: bytes, log: bytes) -> Rows:
    """Return the rows that SQLite finds in a copy."""
    path.write_bytes(data)
    log_of(path).write_bytes(log)
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA synchronous = OFF")
        return rows_of(db)


@dataclasses.dataclass(frozen=True)
class History:
    """File, its log, and the rows at each size of the log."""

    data: bytes
    log: bytes
    states: list[tuple[int, Rows]]

    def at(self, size: int) -> Rows:
        """Return the rows that a log with `size` whole bytes must give."""
        return next((rows for end, rows in reversed(self.states) if end <= size), {})


@pytest.fixture(scope="module")
def history(tmp_path_factory: pytest.TempPathFactory) -> History:
    path = tmp_path_factory.mktemp("history") / "results.db"
    store = small_store(path)
    states = [(0, {}), (log_of(path).stat().st_size, rows_of(store._db))]
    for num in range(1, 13):
        step(num)(store)
        states.append((log_of(path).stat().st_size, rows_of(store._db)))
    history = History(path.read_bytes(), log_of(path).read_bytes(), states)
    store.close()
    return history


def test_cut_at_every_page_of_its_log_it_has_the_commits_before(history: History, tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    num_frames = (len(history.log) - HEADER) // FRAME
    assert num_frames > 60
    for num in range(num_frames + 1):
        cut = HEADER + num * FRAME
        log_of(path).write_bytes(history.log[:cut])
        path.write_bytes(history.data)
        store = SqliteStore(path, is_synced=False)
        assert rows_of(store._db) == history.at(cut), f"after {num} pages"
        store.close()


def test_cut_at_every_byte_of_its_last_commit_it_has_the_commits_before(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    store = small_store(path)
    step(1)(store)
    step(6)(store)
    store.begin_process()
    with store._file.changing():
        store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    states = [(0, rows_of(store._db))]
    for num in (1, 6):
        begin(num)(store)
        states.append((log_of(path).stat().st_size, rows_of(store._db)))
    history = History(path.read_bytes(), log_of(path).read_bytes(), states)
    store.close()
    assert len(history.log) == HEADER + 2 * FRAME
    for cut in range(HEADER + FRAME - 1, len(history.log) + 1):
        assert rows_after(tmp_path / "copy.db", history.data, history.log[:cut]) == history.at(cut), f"at byte {cut}"


def test_a_page_of_its_log_that_was_not_written_ends_what_is_there(history: History, tmp_path: Path) -> None:
    """Power was cut while pages were on their way to the disk, in an order of its own."""
    path = tmp_path / "copy.db"
    for start in range(HEADER, len(history.log), FRAME):
        for hole in (bytes(FRAME), b"\xa5" * FRAME, history.log[HEADER : HEADER + FRAME]):
            if hole == history.log[start : start + FRAME]:
                continue
            log = history.log[:start] + hole + history.log[start + FRAME :]
            assert rows_after(path, history.data, log) == history.at(start), f"a hole at byte {start}"


def test_cut_while_the_log_is_copied_into_the_file_it_loses_nothing(history: History, tmp_path: Path) -> None:
    path = tmp_path / "copy.db"
    expected = history.states[-1][1]
    assert rows_after(path, history.data, history.log) == expected  # its end copied the log
    after = path.read_bytes()
    before = history.data.ljust(len(after), b"\0")
    for start in range(0, len(after), PAGE):
        forwards = after[:start] + before[start:]
        backwards = before[:start] + after[start:]
        for data in (forwards, backwards):
            assert rows_after(path, data, history.log) == expected, f"page {start // PAGE}"


def test_cut_while_a_new_log_overwrites_the_old_one_it_has_the_commits_before(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    store = small_store(path)
    for num in range(1, 7):
        step(num)(store)
    store.begin_process()
    with store._file.changing():
        store._db.execute("PRAGMA wal_checkpoint(RESTART)").fetchall()  # the next commit begins the log anew
    data, old_log, before = path.read_bytes(), log_of(path).read_bytes(), rows_of(store._db)
    begin(6)(store)
    log, after = log_of(path).read_bytes(), rows_of(store._db)
    store.close()
    assert (len(log), log[:HEADER] == old_log[:HEADER], before == after) == (len(old_log), False, False)
    end = max(at for at in range(len(log)) if log[at] != old_log[at]) + 1
    for cut in range(end + 1):
        state = after if cut == end else before
        assert rows_after(tmp_path / "copy.db", data, log[:cut] + old_log[cut:]) == state, f"at byte {cut}"


@contextlib.contextmanager
def writes_fail_from(size: int) -> Iterator[None]:
    """Let no file of this process grow beyond `size` bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_disk_that_is_full_at_any_write_refuses_the_commit_whole(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    store = small_store(path)
    num_refused = 0
    for num in range(1, 13):
        before, size = rows_of(store._db), log_of(path).stat().st_size
        for room in range(0, 100 * FRAME, FRAME // 2):  # no page, half a page, one page, …
            with writes_fail_from(size + room):
                try:
                    step(num)(store)
                    break
                except StoreError:
                    num_refused += 1
            assert rows_of(store._db) == before, f"step {num} with room for {room} bytes"
            assert rows_after(tmp_path / "copy.db", path.read_bytes(), log_of(path).read_bytes()) == before
        assert rows_of(store._db) != before, "there was room in the end"
    after = rows_of(store._db)
    assert num_refused > 60
    store.close()
    assert rows_after(tmp_path / "copy.db", path.read_bytes(), b"") == after


def test_a_disk_that_is_full_when_the_log_is_copied_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    store = small_store(path)
    for num in range(1, 13):
        step(num)(store)
    before = rows_of(store._db)
    for size in range(0, 40 * PAGE, PAGE // 2):
        with writes_fail_from(size), pytest.raises(sqlite3.Error), store._file.changing():
            store._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        assert rows_of(store._db) == before
        assert rows_after(tmp_path / "copy.db", path.read_bytes(), log_of(path).read_bytes()) == before
    store.close()
    assert rows_after(tmp_path / "copy.db", path.read_bytes(), b"") == before


def test_nothing_of_a_file_changes_that_an_earlier_version_encrypted(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    SqliteStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("INSERT INTO meta VALUES ('key_mark', x'00')")
        db.commit()
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="an earlier version of splitfuse encrypted it; use that version"):
        SqliteStore(path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize(
    "script",
    [
        "CREATE TABLE notes (text)",
        "PRAGMA application_id = 1; CREATE TABLE notes (text)",
        "PRAGMA application_id = 1",
        "PRAGMA user_version = -1",
        "PRAGMA user_version = 1; CREATE TABLE notes (text)",
        "PRAGMA user_version = 99; CREATE TABLE notes (text)",
    ],
)
def test_another_programs_database_is_refused_before_anything_is_written(tmp_path: Path, script: str) -> None:
    path = tmp_path / "theirs.db"
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.executescript(script)
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="another program's database") as info:
        SqliteStore(path)
    assert "\n" not in str(info.value)
    assert path.read_bytes() == before


def test_a_file_of_an_earlier_version_has_no_application_id_and_gets_one(tmp_path: Path) -> None:
    path = tmp_path / "results.db"
    SqliteStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA application_id = 0")
    SqliteStore(path).close()
    with contextlib.closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA application_id").fetchone() == (sqlite_store.APPLICATION_ID,)
