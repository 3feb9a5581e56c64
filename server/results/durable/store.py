"""Store: kept jobs, files and batches in tables of SQLite or PostgreSQL. Only one thread uses a store.

Each statement is written once, with PostgreSQL's names of tables and SQLite's placeholders; a Session translates it.
A server may change only rows that it holds. In SQLite's file one process holds all rows; a file in PostgreSQL has a
holder while it is partial, a job or batch until it is over.
"""

import logging
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, TypeVar

from ....engine.errors import ConfigError
from ...api.listing import Page
from .batch_rows import BatchChanges, BatchRow, FileRow, LinesDone
from .checksum import DamagedError, checksum, whole_parts
from .records import Changes, JobRow
from .sql import Dialect, Session

T = TypeVar("T")
Row = TypeVar("Row", FileRow, BatchRow)
_log = logging.getLogger("splitfuse.results")
JOB_COLUMNS = ", ".join(JobRow.__slots__)
_SELECT = f"SELECT {JOB_COLUMNS} FROM splitfuse_jobs"
_SELECT_FILE = f"SELECT {', '.join(FileRow.__slots__)} FROM splitfuse_files"
_SELECT_BATCH = f"SELECT {', '.join(BatchRow.__slots__)} FROM splitfuse_batches"
# Whoever adds a job holds its key's lock and found no job, so one that has the key has expired.
_FREE_KEY = "DELETE FROM splitfuse_jobs WHERE owner = ? AND idempotency_key = ? AND status IS NOT NULL"
_OF_OWNER = " AND owner = ?"
DELETE_FILES = "UPDATE splitfuse_files SET state = 'deleted', filename = '' WHERE state <> 'deleted' AND"
_ID_FORM = re.compile(r"[A-Za-z0-9_.~-]{1,200}")
_SWEPT_PARTS = 32  # per transaction: 4 MiB of an uploaded file


def _updates(*names: str) -> str:
    return ", ".join(f"{name} = excluded.{name}" for name in names)


_KNOWN_BATCH = f"ON CONFLICT (batch_id) DO UPDATE SET {_updates('expires', 'body', 'is_over', 'row_sum')}"
_KNOWN_FILE = f"""
ON CONFLICT (file_id) DO UPDATE SET {_updates("expires", "num_bytes", "num_lines", "state", "row_sum")},
  filename = CASE WHEN excluded.state = 'deleted' THEN '' ELSE splitfuse_files.filename END"""


class BackupError(Exception):
    """A copy of the store cannot be made; the store itself is sound."""


class StoreError(Exception):
    """The store cannot be read or written: the disk is full or failing, or the server is gone."""


class UnreadableError(StoreError):
    """Damage of a row, or of the way to it, on disk; the rest of the store can be read."""


def has_id_form(text: str) -> bool:
    """True if the text can be an id; no store is asked for any other."""
    return _ID_FORM.fullmatch(text) is not None


class Store(ABC):
    """Store in SQL tables. Writes are atomic, and durable when they return. Every method may raise StoreError.

    A subclass provides the connection, and what it tells of holders.
    """

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._has_deleted = True  # since the last sweep, or by a process that died before sweeping

    @abstractmethod
    def _connected(self) -> AbstractContextManager[Session]:
        """Session to read with. Its errors become StoreErrors."""

    @abstractmethod
    def _changing(self) -> AbstractContextManager[Session]:
        """Session inside a transaction. Raises StoreError, also if this server may write no more."""

    @abstractmethod
    def last_numbers(self) -> tuple[int, int]:
        """Return the highest numbers of a job and a segment, 0 if there are none; this process continues above them."""

    @abstractmethod
    def begin_process(self) -> bool:
        """Note that a process uses the store from now on. Returns True if the previous process had ended properly.

        If it had not, each running job and line counts one more crash. None is marked as running then, and uploads that
        were cut short are deleted.
        """

    @abstractmethod
    def end_process(self, *, has_crashed: bool = False) -> None:
        """Note that the process ends: properly, or because its engine died, which counts as a crash."""

    @abstractmethod
    def close(self) -> None:
        """Close the store."""

    def _mine(self, table: str) -> str:
        """Return the condition of the rows that this server holds."""
        return "TRUE"

    def _more(self, row: JobRow | FileRow | BatchRow, *, batch_id: str | None = None) -> dict[str, object]:
        """Return the columns of a new row that other databases lack. `batch_id`: the batch that writes a file."""
        return {}

    def commit(self, changes: Changes) -> None:
        """Write all changes or none. Without changes find out whether the store is where it was."""
        mine = self._mine("jobs")
        with self._changing() as db:
            keys = [(row.owner, row.idempotency_key) for row in changes.accepted if row.idempotency_key is not None]
            num_freed = db.execute_many(_FREE_KEY, keys)
            self._has_deleted |= bool(changes.deleted) or num_freed > 0
            db.insert("jobs", [_values(row.summed()) | self._more(row) for row in changes.accepted])
            if changes.segment is not None:
                db.insert("segments", [self._segment(*changes.segment)], self._dialect.known_segment)
            ends = [
                (end.status, end.finished, end.expires, end.result, end.result_sum, end.num) for end in changes.endings
            ]
            end = "status = ?, finished = ?, expires = ?, result = ?, result_sum = ?, is_running = FALSE"
            db.execute_many(f"UPDATE splitfuse_jobs SET {end}{self._dialect.ending} WHERE num = ? AND {mine}", ends)
            begun = [(num,) for num in changes.begun]
            db.execute_many(f"UPDATE splitfuse_jobs SET is_running = TRUE WHERE num = ? AND {mine}", begun)
            renewed = [(request, checksum(num, request), num) for num, request in changes.renewed]
            renew = "UPDATE splitfuse_jobs SET request = ?, request_sum = ? WHERE num = ?"
            db.execute_many(f"{renew} AND {mine}", renewed)
            deleted = [(seq_id,) for seq_id in changes.deleted]
            db.execute_many(f"DELETE FROM splitfuse_jobs WHERE seq_id = ? AND (status IS NOT NULL OR {mine})", deleted)
            for statement in self._dialect.probe if changes.probes else ():
                db.execute(statement)

    def _segment(self, number: int, body: bytes) -> dict[str, object]:
        """Return the columns of a new segment."""
        return {"num": number, "body": body}

    def unfinished(self) -> list[JobRow]:
        """Return the jobs that have not ended, oldest first."""
        nums = self._column("SELECT num FROM splitfuse_jobs WHERE status IS NULL ORDER BY num")
        return [row for num in nums if (row := self._unfinished(num)) is not None]

    def _unfinished(self, num: int) -> JobRow | None:
        try:
            row = self._row(JobRow, f"{_SELECT} WHERE num = ?", num)
        except UnreadableError as exc:
            _log.error("results: job number %d was changed on disk and does not go on: %s", num, exc)
            return None
        return row if row is not None and row.status is None else None

    def segments(self, first: int) -> Iterable[bytes]:
        """Yield the segments from this number on."""
        with self._connected() as db:
            for (body,) in db.execute("SELECT body FROM splitfuse_segments WHERE num >= ? ORDER BY num", first):
                yield body

    def find(self, seq_id: str) -> JobRow | None:
        """Find the job with this id."""
        return self._row(JobRow, f"{_SELECT} WHERE seq_id = ?", seq_id)

    def find_key(self, owner: str, idempotency_key: bytes) -> JobRow | None:
        """Find the owner's job with this key."""
        return self._row(JobRow, f"{_SELECT} WHERE owner = ? AND idempotency_key = ?", owner, idempotency_key)

    def page(self, owner: str, *, before: tuple[float, str] | None, limit: int, status: str | None) -> list[JobRow]:
        """Return the owner's ended jobs that were created before this time and id, newest first."""
        created, seq_id = before or (math.inf, "")
        where = "owner = ? AND status IS NOT NULL AND coalesce(?, status) = status AND (created, seq_id) < (?, ?)"
        query = f"{_SELECT} WHERE {where} ORDER BY created DESC, seq_id DESC LIMIT ?"
        return self._rows(JobRow, query, owner, status, created, seq_id, limit)

    def delete_owner(self, owner: str) -> list[str]:
        """Delete all jobs of an owner. Returns their ids."""
        self._has_deleted = True
        with self._changing() as db:
            deleted = db.execute("DELETE FROM splitfuse_jobs WHERE owner = ? RETURNING seq_id", owner)
            return [seq_id for (seq_id,) in deleted]

    def num_bytes_of(self, owner: str) -> int:
        """Return the approximate size of the owner's jobs."""
        return self._int(f"SELECT sum({self._dialect.num_bytes}) FROM splitfuse_jobs WHERE owner = ?", owner)

    def sweep(self, now: float, *, max_jobs: int) -> int:
        """Delete unused segments, at most `max_jobs` expired jobs, and expired or deleted files and batches as far as
        that is quick. Returns the number of jobs deleted.
        """
        with self._changing() as db:
            self._sweep_batches(db, now)
        with self._changing() as db:
            oldest = f"coalesce((SELECT min(first_segment) FROM splitfuse_jobs WHERE status IS NULL), {1 << 62})"
            db.execute(f"DELETE FROM splitfuse_segments WHERE num < {oldest}")
            expired = "SELECT num FROM splitfuse_jobs WHERE status IS NOT NULL AND expires <= ? LIMIT ?"
            swept = db.execute(f"DELETE FROM splitfuse_jobs WHERE num IN ({expired})", now, max_jobs)
            return int(swept.rowcount)

    def _sweep_batches(self, db: Session, now: float) -> None:
        """Delete expired rows, and some parts of one deleted file."""
        where = f"expires <= ? AND {self._dialect.is_out_of_use}"
        batch_ids = db.execute(f"DELETE FROM splitfuse_batches WHERE {where} RETURNING batch_id", now).fetchall()
        db.execute_many("DELETE FROM splitfuse_begun_lines WHERE batch_id = ?", batch_ids)
        num_expired = db.execute(f"{DELETE_FILES} expires <= ?", now).rowcount
        deleted = "SELECT file_id FROM splitfuse_files WHERE state = 'deleted' ORDER BY num LIMIT 1"
        file_ids = db.execute(deleted).fetchall()
        for (file_id,) in file_ids:
            some = "SELECT number FROM splitfuse_file_parts WHERE file_id = ? LIMIT ?"
            delete = f"DELETE FROM splitfuse_file_parts WHERE file_id = ? AND number IN ({some})"
            if db.execute(delete, file_id, file_id, _SWEPT_PARTS).rowcount < _SWEPT_PARTS:
                db.execute("DELETE FROM splitfuse_files WHERE file_id = ?", file_id)
        self._has_deleted |= bool(batch_ids or num_expired or file_ids)

    def write_batches(self, changes: BatchChanges) -> None:
        """Write all changes or none. Rows that another server holds stay unchanged."""
        self._has_deleted |= any(file.state == "deleted" for file in changes.files)
        my_batch, my_file = self._mine("batches"), self._mine("files")
        held = f"FROM splitfuse_batches WHERE batch_id = ? AND {my_batch}"
        with self._changing() as db:
            batches = [_values(batch.summed()) | self._more(batch) for batch in changes.batches]
            db.insert("batches", batches, f"{_KNOWN_BATCH} WHERE {my_batch}")
            outputs = {
                file_id: batch_id
                for file_id, batch_id in changes.outputs
                if db.execute(f"SELECT 1 {held}", batch_id).fetchone() is not None
            }
            lost = dict(changes.outputs).keys() - outputs.keys()
            files = [
                _values(replace(file, filename=_text(file.filename)).summed())
                | self._more(file, batch_id=outputs.get(file.file_id))
                for file in changes.files
                if file.file_id not in lost
            ]
            is_open = f"splitfuse_files.state = 'ready' OR splitfuse_files.state = 'partial' AND {my_file}"
            db.insert("files", files, f"{_KNOWN_FILE} WHERE {is_open}")
            parts = [(*part[1:], checksum(*part), part[0]) for part in changes.parts]
            file = f"FROM splitfuse_files WHERE file_id = ? AND state <> 'deleted' AND {my_file} ON CONFLICT DO NOTHING"
            db.execute_many(f"INSERT INTO splitfuse_file_parts SELECT file_id, ?, ?, ? {file}", parts)
            begun = [(line, batch_id) for batch_id, line in changes.begun]
            begin = f"INSERT INTO splitfuse_begun_lines SELECT batch_id, ?, 0, TRUE {held}"
            db.execute_many(f"{begin} ON CONFLICT (batch_id, line) DO UPDATE SET is_running = TRUE", begun)
            answered = [(line, batch_id) for batch_id, line in changes.answered]
            end = f"DELETE FROM splitfuse_begun_lines WHERE line = ? AND batch_id IN (SELECT batch_id {held})"
            db.execute_many(end, answered)

    def find_file(self, file_id: str) -> FileRow | None:
        """Find the file with this id, in any state."""
        return _whole(self._row(FileRow, f"{_SELECT_FILE} WHERE file_id = ?", _text(file_id)))

    def find_batch(self, batch_id: str) -> BatchRow | None:
        """Find the batch with this id."""
        return _whole(self._row(BatchRow, f"{_SELECT_BATCH} WHERE batch_id = ?", _text(batch_id)))

    def find_batch_key(self, owner: str, idempotency_key: bytes) -> BatchRow | None:
        """Find the owner's batch with this key."""
        query = f"{_SELECT_BATCH} WHERE owner = ? AND idempotency_key = ?"
        return _whole(self._row(BatchRow, query, owner, idempotency_key))

    def list_files(self, owner: str, page: Page, *, now: float, purpose: str | None = None) -> list[FileRow]:
        """Return the owner's ready, unexpired files, of one purpose if it is given."""
        where = "state = 'ready' AND coalesce(?, purpose) = purpose"
        return self._page_of(FileRow, "files", page, owner, now, where, None if purpose is None else _text(purpose))

    def list_batches(self, owner: str, page: Page, *, now: float) -> list[BatchRow]:
        """Return the owner's unexpired batches."""
        return self._page_of(BatchRow, "batches", page, owner, now)

    def _page_of(
        self, kind: type[Row], table: str, page: Page, owner: str, now: float, where: str = "TRUE", *values: object
    ) -> list[Row]:
        """Return one page of the owner's unexpired rows. The first column is the id."""
        sign, order = (">", "ASC") if page.ascends else ("<", "DESC")
        table, columns = f"splitfuse_{table}", kind.__slots__
        if page.after is not None:
            where += f" AND num {sign} (SELECT num FROM {table} WHERE owner = ? AND {columns[0]} = ?)"
            values = (*values, owner, _text(page.after))
        select = f"SELECT {', '.join(columns)} FROM {table} WHERE owner = ? AND expires > ?"
        query = f"{select} AND {where} ORDER BY num {order} LIMIT ?"
        return whole_rows(self._rows(kind, query, owner, now, *values, page.limit))

    def unfinished_batches(self) -> list[BatchRow]:
        """Return the batches that are not over, oldest first."""
        return whole_rows(self._rows(BatchRow, f"{_SELECT_BATCH} WHERE NOT is_over ORDER BY num"))

    def num_unfinished_batches(self, *owner: str) -> int:
        """Count the batches that are not over, of all or of one owner."""
        return self._int("SELECT count(*) FROM splitfuse_batches WHERE NOT is_over" + _OF_OWNER * len(owner), *owner)

    def parts(self, file_id: str, *, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return at most `limit` parts of a file after this number, in order."""
        where = "file_id = ? AND number > ? ORDER BY number LIMIT ?"
        with self._connected() as db:
            query = f"SELECT number, body, part_sum FROM splitfuse_file_parts WHERE {where}"
            return whole_parts(file_id, db.execute(query, file_id, after, limit))

    def lines_done(self, batch_id: str, output_file_id: str, error_file_id: str) -> LinesDone:
        """Return the answered lines of a batch, and the begun ones."""
        query = "SELECT number FROM splitfuse_file_parts WHERE file_id = ?"
        completed, failed = (frozenset(self._column(query, file_id)) for file_id in (output_file_id, error_file_id))
        with self._connected() as db:
            begun = "SELECT line, num_crashes FROM splitfuse_begun_lines WHERE batch_id = ?"
            return LinesDone(completed, failed, dict(db.execute(begun, batch_id).fetchall()))

    def num_file_bytes(self, *owner: str) -> int:
        """Return the total size of all files, or of one owner's."""
        query = "SELECT sum(num_bytes) FROM splitfuse_files WHERE state <> 'deleted'" + _OF_OWNER * len(owner)
        return self._int(query, *owner)

    def num_parts(self, file_id: str) -> int:
        """Return the number of a file's parts."""
        return self._int("SELECT count(*) FROM splitfuse_file_parts WHERE file_id = ?", file_id)

    def file_bytes(self, file_id: str) -> int:
        """Return the total size of a file's parts."""
        return self._int("SELECT sum(length(body)) FROM splitfuse_file_parts WHERE file_id = ?", file_id)

    def _rows(self, kind: Callable[..., T], query: str, *values: object) -> list[T]:
        with self._connected() as db:
            return [kind(*row) for row in db.execute(query, *values)]

    def _row(self, kind: Callable[..., T], query: str, *values: object) -> T | None:
        return next(iter(self._rows(kind, query, *values)), None)

    def _column(self, query: str, *values: object) -> list[Any]:
        return self._rows(lambda value: value, query, *values)

    def _int(self, query: str, *values: object) -> int:
        """Return a number, 0 for the sum or the maximum of no row."""
        try:
            return self._rows(lambda number: int(number or 0), query, *values)[0]
        except ValueError as exc:  # an index whose bits have flipped may have a text there
            raise UnreadableError("a number in its tables is damaged") from exc


def _whole(row: Row | None) -> Row | None:
    """Return a row as it was written. Raises DamagedError."""
    if row is not None and not row.is_whole:
        raise DamagedError
    return row


def whole_rows(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that are as they were written. Damaged ones are logged and left out."""
    whole = []
    for row in rows:
        if row.is_whole:
            whole.append(row)
        else:
            item_id = str(row.file_id if isinstance(row, FileRow) else row.batch_id)
            _log.error("results: %s… was changed on disk and is left out", item_id[:12])
    return whole


def encrypted(results: str) -> ConfigError:
    """Return the refusal of a store that an earlier version of splitfuse has encrypted."""
    return ConfigError(
        f"--results {results}: an earlier version of splitfuse encrypted it; use that version, or name a new one"
    )


def _values(row: JobRow | FileRow | BatchRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in type(row).__slots__}


def _text(text: str) -> str:
    """Replace NUL characters, which PostgreSQL text cannot store and no id contains."""
    return text.replace("\0", "\ufffd")
