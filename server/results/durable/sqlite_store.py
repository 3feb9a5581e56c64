"""SqliteStore: kept jobs, files and batches in one SQLite file, for one process.

One connection in exclusive mode: a second process is refused. So the bug of SQLite before 3.51.3 cannot occur, which
can lose commits when two connections write and checkpoint. Do not trust the locks of network file systems.
"""

import contextlib
import logging
import math
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ....engine.errors import ConfigError
from ....engine.private_file import others_with_access, refuse_link
from ...api.listing import Page
from .batch_rows import BatchChanges, BatchRow, FileRow, LinesDone
from .integrity.checksum import checksum, whole_parts
from .integrity.opened_file import FileChangedError, OpenedFile
from .records import Changes, JobRow, Webhook
from .sealing import OVERHEAD_BYTES, Seal, Sealing, new_mark, opened_row, opened_rows, sealed_row
from .store import BatchStore, StoreError, UnreadableError

T = TypeVar("T")
_log = logging.getLogger("splitfuse.results")
Row = TypeVar("Row", FileRow, BatchRow)
# Statements that migrate each version of the format to the next; the first one creates version 1.
_MIGRATIONS = (
    """
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
""",
    """
CREATE TABLE files (
  num INTEGER PRIMARY KEY, file_id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, created REAL NOT NULL,
  expires REAL NOT NULL, purpose TEXT NOT NULL, filename TEXT NOT NULL, num_bytes INTEGER NOT NULL,
  num_lines INTEGER NOT NULL, state TEXT NOT NULL);
CREATE INDEX files_of_owner ON files (owner, num);
CREATE INDEX files_expiring ON files (expires);
CREATE INDEX files_deleted ON files (num) WHERE state = 'deleted';
CREATE TABLE file_parts (
  file_id TEXT NOT NULL, number INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (file_id, number));
CREATE TABLE batches (
  num INTEGER PRIMARY KEY, batch_id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, created REAL NOT NULL,
  expires REAL NOT NULL, body TEXT NOT NULL, is_over INTEGER NOT NULL, idempotency_key BLOB, body_digest BLOB);
CREATE INDEX batches_of_owner ON batches (owner, num);
CREATE INDEX batches_unfinished ON batches (num) WHERE NOT is_over;
CREATE INDEX batches_expiring ON batches (expires) WHERE is_over;
CREATE UNIQUE INDEX batches_by_key ON batches (owner, idempotency_key) WHERE idempotency_key IS NOT NULL;
CREATE TABLE begun_lines (
  batch_id TEXT NOT NULL, line INTEGER NOT NULL, num_crashes INTEGER NOT NULL,
  PRIMARY KEY (batch_id, line)) WITHOUT ROWID;
""",
    # The sizes of jobs in earlier formats are unknown; those jobs expire.
    """
ALTER TABLE jobs ADD COLUMN num_bytes INTEGER NOT NULL DEFAULT 0;
CREATE INDEX jobs_bytes ON jobs (owner, num_bytes);
CREATE TABLE webhooks (
  seq_id TEXT PRIMARY KEY, target TEXT NOT NULL, status TEXT NOT NULL, finished REAL NOT NULL,
  num_tries INTEGER NOT NULL, next_try REAL NOT NULL) WITHOUT ROWID;
CREATE INDEX webhooks_due ON webhooks (next_try);
""",
    "ALTER TABLE begun_lines ADD COLUMN is_running INTEGER NOT NULL DEFAULT 1;",
    # Rows of earlier formats have no checksums.
    """
ALTER TABLE jobs ADD COLUMN row_sum INTEGER;
ALTER TABLE jobs ADD COLUMN request_sum INTEGER;
ALTER TABLE jobs ADD COLUMN result_sum INTEGER;
ALTER TABLE files ADD COLUMN row_sum INTEGER;
ALTER TABLE batches ADD COLUMN row_sum INTEGER;
ALTER TABLE file_parts ADD COLUMN part_sum INTEGER;
""",
)
SCHEMA_VERSION = len(_MIGRATIONS)
APPLICATION_ID = int.from_bytes(b"spfu", "big")
_FIRST_TABLES = {"meta", "jobs", "segments"}  # tables of version 1
_COLUMNS = ", ".join(JobRow.__slots__)
_INSERT = f"INSERT INTO jobs ({_COLUMNS}, num_bytes) VALUES ({'?, ' * len(JobRow.__slots__)}?)"
_SELECT = f"SELECT {_COLUMNS} FROM jobs"
# Whoever adds a job holds its key's lock and found no job, so one that has the key has expired.
_FREE_KEY = "DELETE FROM jobs WHERE owner = ? AND idempotency_key = ? AND status IS NOT NULL"
_END = """
UPDATE jobs SET status = ?, finished = ?, expires = ?, result = ?, result_sum = ?, num_bytes = num_bytes + ?,
  is_running = 0
WHERE num = ?"""
_TELL = "INSERT INTO webhooks SELECT seq_id, ?, ?, ?, 0, 0.0 FROM jobs WHERE num = ?"
_WEBHOOK = ", ".join(Webhook._fields)
_SELECT_FILE = f"SELECT {', '.join(FileRow.__slots__)} FROM files"
_SELECT_BATCH = f"SELECT {', '.join(BatchRow.__slots__)} FROM batches"
# In an encrypted store the name holds the key of the parts, whose deletion takes a while.
_FORGET_NAMES = "UPDATE files SET filename = '' WHERE state = 'deleted' AND filename != ''"
_INSERT_PART = "INSERT OR IGNORE INTO file_parts VALUES (?, ?, ?, ?)"
_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the latter: a message of SQLite's that quotes damaged text
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_SWEPT_PARTS = 32  # per transaction: 4 MiB of an uploaded file


def _upsert(table: str, key: str, names: Sequence[str], *, changing: Sequence[str]) -> str:
    updates = ", ".join(f"{name} = excluded.{name}" for name in changing)
    values = ", ".join("?" * len(names))
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values}) ON CONFLICT ({key}) DO UPDATE SET {updates}"


_BEGIN_LINE = "INSERT INTO begun_lines VALUES (?, ?, 0, 1) ON CONFLICT (batch_id, line) DO UPDATE SET is_running = 1"
_UPSERT_FILE = _upsert(
    "files", "file_id", FileRow.__slots__, changing=("expires", "num_bytes", "num_lines", "state", "row_sum")
)
_UPSERT_BATCH = _upsert("batches", "batch_id", BatchRow.__slots__, changing=("expires", "body", "is_over", "row_sum"))


class SqliteStore(BatchStore):
    """BatchStore in a file. A missing file is created; an earlier format is migrated, all or nothing."""

    def __init__(self, path: Path | None, *, is_synced: bool = True, sealing: Sealing | None = None) -> None:
        """Open the file; None means a store in memory. `is_synced`: commits survive a power cut too.

        `sealing` encrypts files and batches; jobs arrive encrypted. Raises ConfigError.
        """
        self._sealing = sealing
        self._has_deleted = True  # since the last sweep, or by a process that died before sweeping
        try:
            self._db = _connected(path)
        except sqlite3.Error as exc:
            raise ConfigError(f"--results {path}: {_reason(exc)}") from exc
        try:
            self._prepare(path, is_synced=is_synced)
        except BaseException as exc:
            self._db.close()
            if isinstance(exc, _ERRORS):
                raise ConfigError(f"--results {path}: {_reason(exc)}") from exc
            raise
        self._file = OpenedFile(path, num_bytes=self._num_bytes)

    def _num_bytes(self) -> int:
        num_pages, page_bytes = (
            self._db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "page_size")
        )
        return int(num_pages * page_bytes)

    def _prepare(self, path: Path | None, *, is_synced: bool) -> None:
        self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
        # All that can refuse the file is read before anything is written.
        version = _known_version(self._db, path)
        mark_row = version and self._db.execute("SELECT value FROM meta WHERE key = 'key_mark'").fetchone()
        mark = new_mark(self._sealing, mark_row[0] if mark_row else None, is_new=version == 0, results=str(path))
        for pragma in (
            "auto_vacuum = INCREMENTAL",
            "journal_mode = WAL",
            f"synchronous = {'FULL' if is_synced else 'NORMAL'}",
            "secure_delete = ON",
        ):
            self._db.execute(f"PRAGMA {pragma}")
        with _transaction(self._db):
            for migration in _MIGRATIONS[version:]:
                for statement in migration.split(";"):
                    self._db.execute(statement)
            self._db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            self._db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            if mark is not None:
                self._db.execute("INSERT INTO meta VALUES ('key_mark', ?)", (mark,))

    def commit(self, changes: Changes) -> None:
        if not changes:
            with _translated():
                self._file.check()
            return
        self._has_deleted |= bool(changes.deleted)
        with self._changing() as db:
            freed = db.executemany(_FREE_KEY, [(row.owner, row.idempotency_key) for row in changes.accepted])
            self._has_deleted |= freed.rowcount > 0
            db.executemany(_INSERT, [[*_values(row.summed()), len(row.request)] for row in changes.accepted])
            if changes.segment is not None:
                db.execute("INSERT INTO segments VALUES (?, ?)", changes.segment)
            db.executemany(
                _END,
                [
                    (end.status, end.finished, end.expires, end.result, end.result_sum, len(end.result), end.num)
                    for end in changes.endings
                ],
            )
            hooks = [(end.webhook, end.status, end.finished, end.num) for end in changes.endings if end.webhook]
            db.executemany(_TELL, hooks)
            db.executemany("UPDATE jobs SET is_running = 1 WHERE num = ?", [(num,) for num in changes.begun])
            for table in ("jobs", "webhooks"):
                db.executemany(f"DELETE FROM {table} WHERE seq_id = ?", [(seq_id,) for seq_id in changes.deleted])
            renewed = [(request, checksum(num, request), num) for num, request in changes.renewed]
            db.executemany("UPDATE jobs SET request = ?, request_sum = ? WHERE num = ?", renewed)
            if changes.probes:
                _probe(db)

    def last_numbers(self) -> tuple[int, int]:
        job, segment = (self._read_int(f"SELECT coalesce(max(num), 0) FROM {table}") for table in ("jobs", "segments"))
        # All segments may have been swept. A job without events still bounds the segments that its events will be in.
        first = self._read_int("SELECT coalesce(max(first_segment), 1) FROM jobs WHERE status IS NULL")
        return job, max(segment, first - 1)

    def begin_process(self) -> bool:
        with self._changing() as db:
            row = db.execute("SELECT value FROM meta WHERE key = 'is_clean'").fetchone()
            is_clean = row is None or bool(row[0])
            db.execute("INSERT OR REPLACE INTO meta VALUES ('is_clean', 0)")
            num_crashes = 0 if is_clean else 1
            db.execute(
                "UPDATE jobs SET num_attempts = num_attempts + 1, num_crashes = num_crashes + ? * is_running, "
                "is_running = 0 WHERE status IS NULL",
                (num_crashes,),
            )
            db.execute(
                "UPDATE begun_lines SET num_crashes = num_crashes + ? * is_running, is_running = 0", (num_crashes,)
            )
            db.execute("UPDATE files SET state = 'deleted' WHERE state = 'partial' AND purpose = 'batch'")
            db.execute(_FORGET_NAMES)
        return is_clean

    def end_process(self, *, has_crashed: bool = False) -> None:
        with self._changing() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('is_clean', ?)", (not has_crashed,))

    def unfinished(self) -> list[JobRow]:
        nums = [num for (num,) in self._read("SELECT num FROM jobs WHERE status IS NULL ORDER BY num")]
        return [row for num in nums if (row := self._unfinished(num)) is not None]

    def _unfinished(self, num: int) -> JobRow | None:
        try:
            row = next(self._rows(JobRow, f"{_SELECT} WHERE num = ?", num), None)
        except UnreadableError as exc:
            _log.error("results: job number %d was changed on disk and does not go on: %s", num, exc)
            return None
        return row if row is not None and row.status is None else None

    def segments(self, first: int) -> Iterable[bytes]:
        with _translated():
            for (body,) in self._db.execute("SELECT body FROM segments WHERE num >= ? ORDER BY num", (first,)):
                yield body

    def find(self, seq_id: str) -> JobRow | None:
        return next(self._rows(JobRow, f"{_SELECT} WHERE seq_id = ?", seq_id), None)

    def find_key(self, owner: str, idempotency_key: bytes) -> JobRow | None:
        query = f"{_SELECT} WHERE owner = ? AND idempotency_key = ?"
        return next(self._rows(JobRow, query, owner, idempotency_key), None)

    def page(self, owner: str, *, before: tuple[float, str] | None, limit: int, status: str | None) -> list[JobRow]:
        created, seq_id = before or (math.inf, "")
        where = "owner = ? AND status IS NOT NULL AND (? IS NULL OR status = ?)"
        query = f"{_SELECT} WHERE {where} AND (created, seq_id) < (?, ?) ORDER BY created DESC, seq_id DESC LIMIT ?"
        return list(self._rows(JobRow, query, owner, status, status, created, seq_id, limit))

    def delete_owner(self, owner: str) -> list[str]:
        self._has_deleted = True
        with self._changing() as db:
            db.execute("DELETE FROM webhooks WHERE seq_id IN (SELECT seq_id FROM jobs WHERE owner = ?)", (owner,))
            return [seq_id for (seq_id,) in db.execute("DELETE FROM jobs WHERE owner = ? RETURNING seq_id", (owner,))]

    def write_batches(self, changes: BatchChanges) -> None:
        has_deleted = any(file.state == "deleted" for file in changes.files)
        self._has_deleted |= has_deleted
        with self._changing() as db:
            db.executemany(_UPSERT_FILE, [_values(self._sealed(file)) for file in changes.files])
            db.executemany(_INSERT_PART, [(*part, checksum(*part)) for part in self._sealed_parts(changes.parts)])
            db.executemany(_UPSERT_BATCH, [_values(self._sealed(batch)) for batch in changes.batches])
            if has_deleted:
                db.execute(_FORGET_NAMES)
            db.executemany(_BEGIN_LINE, changes.begun)
            db.executemany("DELETE FROM begun_lines WHERE batch_id = ? AND line = ?", changes.answered)

    def find_file(self, file_id: str) -> FileRow | None:
        return self._opened(self._stored_file(file_id))

    def _stored_file(self, file_id: str) -> FileRow | None:
        return next(self._rows(FileRow, f"{_SELECT_FILE} WHERE file_id = ?", file_id), None)

    def find_batch(self, batch_id: str) -> BatchRow | None:
        return self._opened(next(self._rows(BatchRow, f"{_SELECT_BATCH} WHERE batch_id = ?", batch_id), None))

    def find_batch_key(self, owner: str, idempotency_key: bytes) -> BatchRow | None:
        query = f"{_SELECT_BATCH} WHERE owner = ? AND idempotency_key = ?"
        return self._opened(next(self._rows(BatchRow, query, owner, idempotency_key), None))

    def list_files(self, owner: str, page: Page, *, now: float, purpose: str | None = None) -> list[FileRow]:
        where = "state = 'ready' AND coalesce(?, purpose) = purpose"
        return self._page(FileRow, "files", page, owner, now, where, purpose)

    def list_batches(self, owner: str, page: Page, *, now: float) -> list[BatchRow]:
        return self._page(BatchRow, "batches", page, owner, now)

    def _page(
        self, kind: type[Row], table: str, page: Page, owner: str, now: float, where: str = "true", *values: object
    ) -> list[Row]:
        """Return one page of the owner's unexpired rows. The first column is the id."""
        sign, order = (">", "ASC") if page.ascends else ("<", "DESC")
        columns = kind.__slots__
        if page.after is not None:
            where += f" AND num {sign} (SELECT num FROM {table} WHERE owner = ? AND {columns[0]} = ?)"
            values = (*values, owner, page.after)
        select = f"SELECT {', '.join(columns)} FROM {table} WHERE owner = ? AND expires > ?"
        query = f"{select} AND {where} ORDER BY num {order} LIMIT ?"
        return self._readable(self._rows(kind, query, owner, now, *values, page.limit))

    def unfinished_batches(self) -> list[BatchRow]:
        return self._readable(self._rows(BatchRow, f"{_SELECT_BATCH} WHERE NOT is_over ORDER BY num"))

    def num_unfinished_batches(self) -> int:
        return self._read_int("SELECT count(*) FROM batches WHERE NOT is_over")

    def parts(self, file_id: str, *, after: int, limit: int) -> list[tuple[int, bytes]]:
        columns = "number, body, part_sum"
        query = f"SELECT {columns} FROM file_parts WHERE file_id = ? AND number > ? ORDER BY number LIMIT ?"
        parts = whole_parts(file_id, self._read(query, file_id, after, limit))
        if self._sealing is None:
            return parts
        seal = self._file_seal(file_id)
        return [] if seal is None else [(number, seal.open(str(number), body)) for number, body in parts]

    def lines_done(self, batch_id: str, output_file_id: str, error_file_id: str) -> LinesDone:
        query = "SELECT number FROM file_parts WHERE file_id = ?"
        completed, failed = (
            frozenset(number for (number,) in self._read(query, file_id)) for file_id in (output_file_id, error_file_id)
        )
        return LinesDone(
            completed,
            failed,
            dict(self._read("SELECT line, num_crashes FROM begun_lines WHERE batch_id = ?", batch_id)),
        )

    def num_file_bytes(self) -> int:
        return self._read_int("SELECT coalesce(sum(num_bytes), 0) FROM files WHERE state != 'deleted'")

    def num_parts(self, file_id: str) -> int:
        return self._read_int("SELECT count(*) FROM file_parts WHERE file_id = ?", file_id)

    def file_bytes(self, file_id: str) -> int:
        overhead = 0 if self._sealing is None else OVERHEAD_BYTES
        query = "SELECT coalesce(sum(length(body) - ?), 0) FROM file_parts WHERE file_id = ?"
        return self._read_int(query, overhead, file_id)

    def due_targets(self, now: float) -> list[str]:
        return [target for (target,) in self._read("SELECT DISTINCT target FROM webhooks WHERE next_try <= ?", now)]

    def due_webhooks(self, now: float, *, limit: int, target: str | None = None) -> list[Webhook]:
        where = "next_try <= ? AND coalesce(?, target) = target"
        query = f"SELECT {_WEBHOOK} FROM webhooks WHERE {where} ORDER BY next_try LIMIT ?"
        return list(self._rows(Webhook, query, now, target, limit))

    def begin_webhook(self, webhook: Webhook, *, next_try: float) -> bool:
        begin = "UPDATE webhooks SET num_tries = num_tries + 1, next_try = ? WHERE seq_id = ? AND num_tries = ?"
        with self._changing() as db:
            return bool(db.execute(begin, (next_try, webhook.seq_id, webhook.num_tries)).rowcount)

    def forget_webhook(self, seq_id: str) -> None:
        with self._changing() as db:
            db.execute("DELETE FROM webhooks WHERE seq_id = ?", (seq_id,))

    def num_bytes_of(self, owner: str) -> int:
        return self._read_int("SELECT coalesce(sum(num_bytes), 0) FROM jobs WHERE owner = ?", owner)

    def sweep(self, now: float, *, max_jobs: int) -> int:
        with self._changing() as db:
            before = db.total_changes
            db.execute("DELETE FROM batches WHERE is_over AND expires <= ?", (now,))
            db.execute("UPDATE files SET state = 'deleted' WHERE expires <= ? AND state != 'deleted'", (now,))
            db.execute(_FORGET_NAMES)
            for num, file_id in db.execute("SELECT num, file_id FROM files WHERE state = 'deleted' LIMIT 1").fetchall():
                some = "SELECT rowid FROM file_parts WHERE file_id = ? LIMIT ?"
                swept = db.execute(f"DELETE FROM file_parts WHERE rowid IN ({some})", (file_id, _SWEPT_PARTS))
                if swept.rowcount < _SWEPT_PARTS:
                    db.execute("DELETE FROM files WHERE num = ?", (num,))
            self._has_deleted |= db.total_changes > before
        with self._changing() as db:
            oldest = "coalesce((SELECT min(first_segment) FROM jobs WHERE status IS NULL), 1 << 62)"
            db.execute(f"DELETE FROM segments WHERE num < {oldest}")
            expired = "SELECT num FROM jobs WHERE status IS NOT NULL AND expires <= ? LIMIT ?"
            num_deleted = db.execute(f"DELETE FROM jobs WHERE num IN ({expired})", (now, max_jobs)).rowcount
        with _translated(), self._file.changing():
            self._db.execute("PRAGMA incremental_vacuum(64)").fetchall()
            if self._has_deleted or num_deleted:  # the log still contains their bytes
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._has_deleted = False
        return num_deleted

    def close(self) -> None:
        self._db.close()

    def _sealed(self, row: Row) -> Row:
        return sealed_row(row, self._sealing)

    def _opened(self, row: Row | None) -> Row | None:
        return None if row is None else opened_row(row, self._sealing)

    def _readable(self, rows: Iterator[Row]) -> list[Row]:
        return list(opened_rows(rows, self._sealing))

    def _file_seal(self, file_id: str) -> Seal | None:
        """Return the seal of a file's parts, None if the file is gone."""
        file = self._stored_file(file_id)
        return None if file is None or self._sealing is None else self._sealing.file_seal(file)

    def _sealed_parts(self, parts: Sequence[tuple[str, int, bytes]]) -> Sequence[tuple[str, int, bytes]]:
        """Seal the parts of files that still exist."""
        if self._sealing is None:
            return parts
        seals = {file_id: self._file_seal(file_id) for file_id in {part[0] for part in parts}}
        return [
            (file_id, number, seal.seal(str(number), body))
            for file_id, number, body in parts
            if (seal := seals[file_id]) is not None
        ]

    @contextlib.contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with _translated(), self._file.changing(), _transaction(self._db):
            yield self._db

    def _rows(self, kind: Callable[..., T], query: str, *values: object) -> Iterator[T]:
        return (kind(*row) for row in self._read(query, *values))

    def _read(self, query: str, *values: object) -> Iterator[tuple[Any, ...]]:
        with _translated():
            return iter(self._db.execute(query, values).fetchall())

    def _read_int(self, query: str, *values: object) -> int:
        return int(next(self._read(query, *values))[0])


def _known_version(db: sqlite3.Connection, path: Path | None) -> int:
    """Return the version of the file's format, 0 for an empty file. Raises ConfigError if it is no file of ours."""
    version, application = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("user_version", "application_id"))
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    # Files of earlier versions have no application id.
    is_ours = application in (0, APPLICATION_ID) and (tables >= _FIRST_TABLES if version else not tables)
    if version < 0 or not is_ours:
        raise ConfigError(f"--results {path}: another program's database, not one of splitfuse; name another file")
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"--results {path}: a later version of splitfuse made it (format {version}, this one knows "
            f"{SCHEMA_VERSION}); use that version or another file"
        )
    return int(version)


def _connected(path: Path | None) -> sqlite3.Connection:
    if path is not None and path.is_dir():
        raise ConfigError(f"--results {path} is a folder; name a file in it: --results {path / 'results.db'}")
    if path is not None and not path.parent.is_dir():
        raise ConfigError(f"--results {path}: there is no folder {path.parent}; make it, or name another file")
    if path is not None and not path.exists():  # users' data: only this user may read it
        refuse_link(path, setting="--results")
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
    elif path is not None and (others := others_with_access(path)):
        _log.warning("--results %s: %s can read or write it: chmod 600 %s", path, others, path)
    db = sqlite3.connect(path or ":memory:", isolation_level=None, timeout=0, check_same_thread=False)
    db.text_factory = lambda raw: raw.decode(errors="surrogateescape")  # a damaged text is found where it is used
    return db


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:  # a full disk may already have rolled it back
            db.execute("ROLLBACK")
        raise


def _probe(db: sqlite3.Connection) -> None:
    """Write a job and a segment, and take them back; write a row that stays, for only a commit reaches the disk."""
    db.execute("SAVEPOINT probe")
    db.execute("INSERT OR REPLACE INTO segments VALUES ((SELECT coalesce(max(num), 0) + 1 FROM segments), x'00')")
    probe = JobRow((1 << 62) - 1, "probe", "", 0.0, "", 1)
    db.execute(_INSERT, [*_values(probe), 0])
    db.execute("ROLLBACK TO probe")
    db.execute("RELEASE probe")
    db.execute("INSERT OR REPLACE INTO meta VALUES ('probe', random())")


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except FileChangedError as exc:
        raise StoreError(str(exc)) from exc
    except UnicodeDecodeError as exc:
        raise UnreadableError(_reason(exc)) from exc
    except sqlite3.Error as exc:
        kind = UnreadableError if getattr(exc, "sqlite_errorcode", 0) & 0xFF in _CORRUPT else StoreError
        raise kind(_reason(exc)) from exc


def _values(row: JobRow | FileRow | BatchRow) -> list[object]:
    return [getattr(row, name) for name in type(row).__slots__]


def _reason(exc: sqlite3.Error | UnicodeDecodeError) -> str:
    if getattr(exc, "sqlite_errorname", "") == "SQLITE_BUSY":  # misuse, a bug of ours, has no name
        return "another process uses this file; give each server its own, or share a postgresql:// database"
    return f"SQLite says: {exc}"
