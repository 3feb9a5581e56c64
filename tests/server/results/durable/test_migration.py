"""A file of an earlier format is brought to this one, whole or not at all."""

import contextlib
import sqlite3
from pathlib import Path

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.server.api.listing import Page
from splitfuse.server.results.durable.batch_rows import BatchChanges, BatchRow, FileRow
from splitfuse.server.results.durable.sqlite_store import SCHEMA_VERSION, SqliteStore

# As the first release made it.
VERSION_1 = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE jobs (
  num INTEGER PRIMARY KEY, seq_id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, created REAL NOT NULL,
  request TEXT NOT NULL, first_segment INTEGER NOT NULL, is_running INTEGER NOT NULL,
  num_attempts INTEGER NOT NULL, num_crashes INTEGER NOT NULL,
  status TEXT, finished REAL, expires REAL, result TEXT, idempotency_key BLOB, body_digest BLOB);
CREATE INDEX jobs_unfinished ON jobs (num) WHERE status IS NULL;
CREATE INDEX jobs_expiring ON jobs (expires) WHERE status IS NOT NULL;
CREATE INDEX jobs_of_owner ON jobs (owner, created, seq_id);
CREATE UNIQUE INDEX jobs_by_key ON jobs (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE TABLE segments (num INTEGER PRIMARY KEY, body BLOB NOT NULL);
INSERT INTO meta VALUES ('is_clean', 0);
INSERT INTO jobs VALUES (1, 'done', 'me', 1, '{}', 1, 0, 1, 0, 'completed', 2, 9e9, '[]', NULL, NULL);
INSERT INTO jobs VALUES (2, 'open', 'me', 1, '{}', 1, 1, 1, 0, NULL, NULL, NULL, NULL, x'6b', x'62');
INSERT INTO segments VALUES (1, x'00');
PRAGMA user_version = 1;
"""


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.db"
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.executescript("PRAGMA auto_vacuum = INCREMENTAL; PRAGMA journal_mode = WAL;" + VERSION_1)
    return path


def tables(path: Path) -> tuple[int, list[tuple[str, str]]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        version = db.execute("PRAGMA user_version").fetchone()[0]
        return version, sorted(db.execute("SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"))


def test_what_was_kept_is_there_in_the_new_format(old: Path, tmp_path: Path) -> None:
    store = SqliteStore(old)
    assert not store.begin_process(), "the process before had died"
    assert [(row.seq_id, row.num_crashes) for row in store.unfinished()] == [("open", 1)]
    assert store.find_key("me", b"k") == store.find("open")
    found = store.find("done")
    assert found is not None
    assert found.result == "[]"
    assert list(store.segments(0)) == [b"\0"]
    file = FileRow("file-1", "me", 1.0, 9e9, "batch", "f", 2, 1)
    batch = BatchRow("batch-1", "me", 1.0, 9e9, "{}")
    store.write_batches(BatchChanges(files=(file,), parts=(("file-1", 0, b"ab"),), batches=(batch,)))
    assert store.list_files("me", Page(5), now=2.0) == [file]
    assert store.unfinished_batches() == [batch]
    store.close()
    SqliteStore(tmp_path / "new.db").close()
    assert tables(old) == tables(tmp_path / "new.db")
    assert tables(old)[0] == SCHEMA_VERSION


def test_a_migration_that_fails_changes_nothing(old: Path) -> None:
    with contextlib.closing(sqlite3.connect(old, isolation_level=None)) as db:
        db.execute("CREATE TABLE begun_lines (in_the_way)")  # the last table that the migration makes
    before = tables(old)
    with pytest.raises(ConfigError, match="begun_lines already exists"):
        SqliteStore(old)
    assert tables(old) == before
