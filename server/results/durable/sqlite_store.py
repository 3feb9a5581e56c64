"""SqliteStore: kept jobs, files and batches in one SQLite file, for one process.

One connection in exclusive mode: a second process is refused. So the bug of SQLite before 3.51.3 cannot occur, which
can lose commits when two connections write and checkpoint. Do not trust the locks of network file systems.
"""

import contextlib
import logging
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from ....engine.errors import ConfigError
from ....engine.private_file import others_with_access, refuse_link
from .batch_rows import BatchRow, FileRow
from .opened_file import FileChangedError, OpenedFile
from .records import Changes, JobRow
from .sql import Dialect, Session
from .store import DELETE_FILES, BackupError, Store, StoreError, UnreadableError, encrypted

_log = logging.getLogger("splitfuse.results")
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
    "DROP TABLE webhooks;",
)
SCHEMA_VERSION = len(_MIGRATIONS)
APPLICATION_ID = int.from_bytes(b"spfu", "big")
_FIRST_TABLES = {"meta", "jobs", "segments"}  # tables of version 1
_DIALECT = Dialect(
    tables="",
    mark="?",
    ending=", num_bytes = num_bytes + length(?4)",
    num_bytes="num_bytes",
    # A job and a segment, taken back, and a row that stays, for only a commit reaches the disk.
    probe=(
        "SAVEPOINT probe",
        "INSERT OR REPLACE INTO segments VALUES ((SELECT coalesce(max(num), 0) + 1 FROM segments), x'00')",
        f"INSERT INTO jobs VALUES ({(1 << 62) - 1}, 'probe', '', 0.0, '', 1, 1, 1, 0{', NULL' * 6}, 0{', NULL' * 3})",
        "ROLLBACK TO probe",
        "RELEASE probe",
        "INSERT OR REPLACE INTO meta VALUES ('probe', random())",
    ),
    is_out_of_use="is_over",
)
_ERRORS = (sqlite3.Error, UnicodeDecodeError)  # the latter: a message of SQLite's that quotes damaged text
_CORRUPT = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class SqliteStore(Store):
    """Store in a file. A missing file is created; an earlier format is migrated, all or nothing."""

    def __init__(self, path: Path | None, *, is_synced: bool = True) -> None:
        """Open the file; None means a store in memory. `is_synced`: commits survive a power cut too.

        Raises ConfigError.
        """
        super().__init__(_DIALECT)
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
        if version and self._db.execute("SELECT 1 FROM meta WHERE key = 'key_mark'").fetchone():
            raise encrypted(str(path))
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

    def commit(self, changes: Changes) -> None:
        if not changes:
            with _translated():
                self._file.check()
            return
        super().commit(changes)

    def last_numbers(self) -> tuple[int, int]:
        job, segment = (self._int(f"SELECT max(num) FROM {table}") for table in ("jobs", "segments"))
        # All segments may have been swept. A job without events still bounds the segments that its events will be in.
        first = self._int("SELECT coalesce(max(first_segment), 1) FROM jobs WHERE status IS NULL")
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
                num_crashes,
            )
            crashed = "UPDATE begun_lines SET num_crashes = num_crashes + ? * is_running, is_running = 0"
            db.execute(crashed, num_crashes)
            db.execute(f"{DELETE_FILES} state = 'partial' AND purpose = 'batch'")
        return is_clean

    def end_process(self, *, has_crashed: bool = False) -> None:
        with self._changing() as db:
            db.execute("INSERT OR REPLACE INTO meta VALUES ('is_clean', ?)", not has_crashed)

    def sweep(self, now: float, *, max_jobs: int) -> int:
        num_deleted = super().sweep(now, max_jobs=max_jobs)
        with _translated(), self._file.changing():
            self._db.execute("PRAGMA incremental_vacuum(64)").fetchall()
            if self._has_deleted or num_deleted:  # the log still contains their bytes
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        self._has_deleted = False
        return num_deleted

    def backup(self, path: Path) -> int:
        """Write a copy into a new file, which is complete once it has the name; return its size. Raises BackupError."""
        try:
            if path.exists():
                raise BackupError(f"{path} exists; name a new file")
            # A file of this call's own, so that nothing else can be lost. A process that dies leaves it.
            with tempfile.NamedTemporaryFile(prefix=f"{path.name}.", suffix=".part", dir=path.parent) as part:
                self._db.execute("VACUUM INTO ?", (part.name,))
                os.fsync(part.fileno())
                os.link(part.name, path)  # unlike a rename it replaces nothing
                return os.fstat(part.fileno()).st_size
        except (OSError, ValueError, sqlite3.Error) as exc:  # ValueError: no name of a file
            raise BackupError(f"{path} cannot be written ({exc})") from exc

    def close(self) -> None:
        self._db.close()

    def _more(self, row: JobRow | FileRow | BatchRow, *, batch_id: str | None = None) -> dict[str, object]:
        return {"num_bytes": len(row.request)} if isinstance(row, JobRow) else {}

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Session]:
        with _translated():
            yield Session(self._db.cursor, self._dialect)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Session]:
        with self._connected() as session, self._file.changing(), _transaction(self._db):
            yield session


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


def _reason(exc: sqlite3.Error | UnicodeDecodeError) -> str:
    if getattr(exc, "sqlite_errorname", "") == "SQLITE_BUSY":  # misuse, a bug of ours, has no name
        return "another process uses this file; give each server its own, or share a postgresql:// database"
    return f"SQLite says: {exc}"
