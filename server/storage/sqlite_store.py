"""SqliteStore: kept jobs in one file, for one process.

One connection, in exclusive mode: a second process is refused, and the fault of SQLite before 3.51.3 that can lose
commits where two connections write and checkpoint cannot be met. Locks of network file systems are not to be trusted.
"""

import contextlib
import math
import os
import sqlite3
from collections.abc import Iterable, Iterator
from pathlib import Path

from ...engine.errors import ConfigError
from .records import Changes, JobRow
from .store import StoreError

SCHEMA_VERSION = 1
_SCHEMA = """
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
"""
_COLUMNS = ", ".join(JobRow.__slots__)
_INSERT = f"INSERT INTO jobs ({_COLUMNS}) VALUES ({', '.join('?' * len(JobRow.__slots__))})"
_SELECT = f"SELECT {_COLUMNS} FROM jobs"


class SqliteStore:
    """A Store in a file, which is created if there is none."""

    def __init__(self, path: Path, *, is_synced: bool = True) -> None:
        """`is_synced`: a commit outlives a power cut too. Raises ConfigError."""
        self._has_deleted = False  # since the last sweep
        try:
            self._db = _connected(path)
        except sqlite3.Error as exc:
            raise ConfigError(f"--results {path}: {_why(exc)}") from exc
        try:
            self._prepare(path, is_synced=is_synced)
        except BaseException as exc:
            self._db.close()
            if isinstance(exc, sqlite3.Error):
                raise ConfigError(f"--results {path}: {_why(exc)}") from exc
            raise

    def _prepare(self, path: Path, *, is_synced: bool) -> None:
        for pragma in (
            "locking_mode = EXCLUSIVE",
            "auto_vacuum = INCREMENTAL",
            "journal_mode = WAL",
            f"synchronous = {'FULL' if is_synced else 'NORMAL'}",
            "secure_delete = ON",
        ):
            self._db.execute(f"PRAGMA {pragma}")
        with _transaction(self._db):
            version = self._db.execute("PRAGMA user_version").fetchone()[0]
            if version > SCHEMA_VERSION:
                raise ConfigError(
                    f"--results {path}: a later version of splitfuse made it (format {version}, this one knows "
                    f"{SCHEMA_VERSION}); use that version or another file"
                )
            if version == 0:
                for statement in _SCHEMA.split(";"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def commit(self, changes: Changes) -> None:
        """As Store."""
        if not changes:
            return
        self._has_deleted |= bool(changes.deleted)
        with self._changing() as db:
            db.executemany(_INSERT, [_values(row) for row in changes.accepted])
            if changes.segment is not None:
                db.execute("INSERT INTO segments VALUES (?, ?)", changes.segment)
            db.executemany(
                "UPDATE jobs SET status = ?, finished = ?, expires = ?, result = ?, is_running = 0 WHERE num = ?",
                [(end.status, end.finished, end.expires, end.result, end.num) for end in changes.endings],
            )
            db.executemany("UPDATE jobs SET is_running = 1 WHERE num = ?", [(num,) for num in changes.begun])
            db.executemany("DELETE FROM jobs WHERE seq_id = ?", [(seq_id,) for seq_id in changes.deleted])

    def last_numbers(self) -> tuple[int, int]:
        """As Store."""
        job, segment = (self._one(f"SELECT coalesce(max(num), 0) FROM {table}") for table in ("jobs", "segments"))
        return job, segment

    def begin_process(self) -> bool:
        """As Store."""
        with self._changing() as db:
            found = db.execute("SELECT value FROM meta WHERE key = 'is_clean'").fetchone()
            is_clean = found is None or bool(found[0])
            db.execute("INSERT OR REPLACE INTO meta VALUES ('is_clean', 0)")
            num_crashes = 0 if is_clean else 1
            db.execute(
                "UPDATE jobs SET num_attempts = num_attempts + 1, num_crashes = num_crashes + ? * is_running, "
                "is_running = 0 WHERE status IS NULL",
                (num_crashes,),
            )
        return is_clean

    def end_process(self) -> None:
        """As Store."""
        with self._changing() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('is_clean', 1)")

    def unfinished(self) -> list[JobRow]:
        """As Store."""
        return list(self._rows(f"{_SELECT} WHERE status IS NULL ORDER BY num"))

    def segments(self, first: int) -> Iterable[bytes]:
        """As Store."""
        with _translated():
            for (body,) in self._db.execute("SELECT body FROM segments WHERE num >= ? ORDER BY num", (first,)):
                yield body

    def find(self, seq_id: str) -> JobRow | None:
        """As Store."""
        return next(self._rows(f"{_SELECT} WHERE seq_id = ?", seq_id), None)

    def find_key(self, owner: str, idempotency_key: bytes) -> JobRow | None:
        """As Store."""
        return next(self._rows(f"{_SELECT} WHERE owner = ? AND idempotency_key = ?", owner, idempotency_key), None)

    def page(self, owner: str, *, before: tuple[float, str] | None, limit: int, status: str | None) -> list[JobRow]:
        """As Store."""
        created, seq_id = before or (math.inf, "")
        return list(
            self._rows(
                f"{_SELECT} WHERE owner = ? AND status IS NOT NULL AND (? IS NULL OR status = ?)"
                " AND (created, seq_id) < (?, ?) ORDER BY created DESC, seq_id DESC LIMIT ?",
                *(owner, status, status, created, seq_id, limit),
            )
        )

    def delete_owner(self, owner: str) -> list[str]:
        """As Store."""
        self._has_deleted = True
        with self._changing() as db:
            return [seq_id for (seq_id,) in db.execute("DELETE FROM jobs WHERE owner = ? RETURNING seq_id", (owner,))]

    def sweep(self, now: float, *, max_jobs: int) -> int:
        """As Store."""
        with self._changing() as db:
            oldest = "coalesce((SELECT min(first_segment) FROM jobs WHERE status IS NULL), 1 << 62)"
            db.execute(f"DELETE FROM segments WHERE num < {oldest}")
            expired = "SELECT num FROM jobs WHERE status IS NOT NULL AND expires <= ? LIMIT ?"
            num_deleted = db.execute(f"DELETE FROM jobs WHERE num IN ({expired})", (now, max_jobs)).rowcount
        with _translated():
            self._db.execute("PRAGMA incremental_vacuum(64)").fetchall()
            if self._has_deleted or num_deleted:  # their bytes are in the log too
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._has_deleted = False
        return num_deleted

    def close(self) -> None:
        """As Store."""
        self._db.close()

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with _translated(), _transaction(self._db):
            yield self._db

    def _rows(self, query: str, *values: object) -> Iterator[JobRow]:
        with _translated():
            for found in self._db.execute(query, values):
                yield JobRow(*found)

    def _one(self, query: str) -> int:
        with _translated():
            return int(self._db.execute(query).fetchone()[0])


def _connected(path: Path) -> sqlite3.Connection:
    if not path.exists():  # what users wrote is for this user alone
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    return sqlite3.connect(path, isolation_level=None, timeout=0, check_same_thread=False)


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk may have rolled it back already
            db.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except sqlite3.Error as exc:
        raise StoreError(_why(exc)) from exc


def _values(row: JobRow) -> list[object]:
    return [getattr(row, name) for name in JobRow.__slots__]


def _why(exc: sqlite3.Error) -> str:
    if exc.sqlite_errorname == "SQLITE_BUSY":
        return "another process uses this file; give each server its own, or share a postgresql:// database"
    return f"SQLite says: {exc}"
