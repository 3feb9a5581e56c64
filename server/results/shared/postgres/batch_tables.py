"""BatchTables: files and batches in a PostgreSQL database that several servers share.

A batch, the files it writes and a running upload have a holder; writes from any other server match no row. A ready file
has no holder, so any server may delete it. A holder is a server of `splitfuse_holders`, or 0.
"""

import contextlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ....api.listing import Page
from ...durable.batch_rows import BatchChanges, BatchRow, FileRow, LinesDone
from ...durable.integrity.checksum import checksum, whole_parts
from ...durable.sealing import OVERHEAD_BYTES, Seal, Sealing, opened_row, opened_rows, sealed_row
from ...durable.store import BatchStore

if TYPE_CHECKING:
    import psycopg

T = TypeVar("T")
Row = TypeVar("Row", FileRow, BatchRow)
_SELECT_FILE = f"SELECT {', '.join(FileRow.__slots__)} FROM splitfuse_files"
_SELECT_BATCH = f"SELECT {', '.join(BatchRow.__slots__)} FROM splitfuse_batches"
_UPSERT_BATCH = f"""
INSERT INTO splitfuse_batches ({", ".join(BatchRow.__slots__)}, holder, model)
VALUES ({", ".join(f"%({name})s" for name in BatchRow.__slots__)}, %(me)s, %(model)s)
ON CONFLICT (batch_id) DO UPDATE SET expires = EXCLUDED.expires, body = EXCLUDED.body, is_over = EXCLUDED.is_over,
  row_sum = EXCLUDED.row_sum
WHERE splitfuse_batches.holder = EXCLUDED.holder"""
_IS_HELD = "EXISTS (SELECT FROM splitfuse_batches WHERE batch_id = %(batch_id)s::text AND holder = %(me)s)"
_UPSERT_FILE = f"""
INSERT INTO splitfuse_files ({", ".join(FileRow.__slots__)}, holder, batch_id)
SELECT {", ".join(f"%({name})s" for name in FileRow.__slots__)}, %(me)s, %(batch_id)s::text
WHERE %(batch_id)s::text IS NULL OR {_IS_HELD}
ON CONFLICT (file_id) DO UPDATE SET expires = EXCLUDED.expires, num_bytes = EXCLUDED.num_bytes,
  num_lines = EXCLUDED.num_lines, state = EXCLUDED.state, row_sum = EXCLUDED.row_sum,
  filename = CASE WHEN EXCLUDED.state = 'deleted' THEN '' ELSE splitfuse_files.filename END
WHERE splitfuse_files.state = 'ready' OR
  splitfuse_files.state = 'partial' AND splitfuse_files.holder = EXCLUDED.holder"""
_INSERT_PART = """
INSERT INTO splitfuse_file_parts SELECT file_id, %s, %s, %s FROM splitfuse_files
WHERE file_id = %s AND holder = %s AND state <> 'deleted' ON CONFLICT DO NOTHING"""
_BEGIN_LINE = """
INSERT INTO splitfuse_begun_lines SELECT batch_id, %s, 0, TRUE FROM splitfuse_batches
WHERE batch_id = %s AND holder = %s ON CONFLICT (batch_id, line) DO UPDATE SET is_running = TRUE"""
_END_LINE = """
DELETE FROM splitfuse_begun_lines WHERE line = %s AND batch_id IN
  (SELECT batch_id FROM splitfuse_batches WHERE batch_id = %s AND holder = %s)"""
_NO_HOLDER = "NOT EXISTS (SELECT FROM splitfuse_holders AS each WHERE each.num = holder AND NOT is_dead)"
# Two statements: the first locks rows. The second checks again, and sees every server that could have changed them.
_FREE = f"""
SELECT batch_id FROM splitfuse_batches WHERE NOT is_over AND model = %s AND {_NO_HOLDER}
ORDER BY num LIMIT %s FOR UPDATE SKIP LOCKED"""
_CLAIM = f"""
UPDATE splitfuse_batches SET holder = %s WHERE batch_id = ANY(%s) AND NOT is_over AND {_NO_HOLDER}
RETURNING num, {", ".join(BatchRow.__slots__)}"""
_CLAIM_LINES = """
UPDATE splitfuse_begun_lines SET num_crashes = num_crashes + is_running::int, is_running = FALSE
WHERE batch_id = ANY(%s)"""
# In an encrypted store the name holds the key of the parts, whose deletion takes a while.
_DELETE_FILES = "UPDATE splitfuse_files SET state = 'deleted', filename = '' WHERE state <> 'deleted' AND "
_CUT_UPLOADS = f"""{_DELETE_FILES} state = 'partial' AND purpose = 'batch' AND {_NO_HOLDER}"""
# An unfinished batch that has expired belongs to a model that no server runs any more.
_SWEEP_BATCHES = f"""
WITH swept AS (DELETE FROM splitfuse_batches WHERE expires <= %s AND (is_over OR {_NO_HOLDER}) RETURNING batch_id)
DELETE FROM splitfuse_begun_lines WHERE batch_id IN (SELECT batch_id FROM swept)"""
_SWEEP_PARTS = """
DELETE FROM splitfuse_file_parts WHERE file_id = %(file_id)s AND number IN
  (SELECT number FROM splitfuse_file_parts WHERE file_id = %(file_id)s LIMIT %(limit)s)"""
_SWEPT_PARTS = 32  # per transaction: 4 MiB of an uploaded file
_SWEEP_LOCK = 0x7377656570  # held by the one server that sweeps


class BatchTables(BatchStore):
    """Files and batches of a store. The subclass provides the connection and this server's number."""

    _model: str
    _sealing: Sealing | None  # encrypts files and batches

    @property
    @abstractmethod
    def _me(self) -> int:
        """Number of this server."""

    @abstractmethod
    def _connected(self) -> "contextlib.AbstractContextManager[psycopg.Connection[Any]]":
        """Connection to read from. Its errors become StoreErrors."""

    @abstractmethod
    def _changing(self) -> "contextlib.AbstractContextManager[psycopg.Connection[Any]]":
        """Like `_connected`, but inside a transaction. Raises StoreError if this server was declared dead."""

    def write_batches(self, changes: BatchChanges) -> None:
        """Like BatchStore.write_batches, but leaves other servers' rows unchanged."""
        me = self._me
        with self._changing() as db, db.cursor() as cursor:
            if changes.batches:
                common = {"me": me, "model": self._model}
                cursor.executemany(_UPSERT_BATCH, [_values(self._sealed(row)) | common for row in changes.batches])
            if changes.files:
                batch_of = dict(changes.outputs)
                files = [self._sealed(replace(row, filename=_text(row.filename))) for row in changes.files]
                common = {"me": me}
                values = [_values(row) | common | {"batch_id": batch_of.get(row.file_id)} for row in files]
                cursor.executemany(_UPSERT_FILE, values)
            if changes.parts:
                parts = self._sealed_parts(changes.parts)
                cursor.executemany(_INSERT_PART, [(*part[1:], checksum(*part), part[0], me) for part in parts])
            if changes.begun:
                cursor.executemany(_BEGIN_LINE, [(line, batch_id, me) for batch_id, line in changes.begun])
            if changes.answered:
                cursor.executemany(_END_LINE, [(line, batch_id, me) for batch_id, line in changes.answered])

    def find_file(self, file_id: str) -> FileRow | None:
        return self._opened(self._read(FileRow, f"{_SELECT_FILE} WHERE file_id = %s", _text(file_id)))

    def find_batch(self, batch_id: str) -> BatchRow | None:
        return self._opened(self._read(BatchRow, f"{_SELECT_BATCH} WHERE batch_id = %s", _text(batch_id)))

    def find_batch_key(self, owner: str, idempotency_key: bytes) -> BatchRow | None:
        query = f"{_SELECT_BATCH} WHERE owner = %s AND idempotency_key = %s"
        return self._opened(self._read(BatchRow, query, owner, idempotency_key))

    def list_files(self, owner: str, page: Page, *, now: float, purpose: str | None = None) -> list[FileRow]:
        where = "state = 'ready' AND coalesce(%s, purpose) = purpose"
        return self._page_of(FileRow, "files", page, owner, now, where, None if purpose is None else _text(purpose))

    def list_batches(self, owner: str, page: Page, *, now: float) -> list[BatchRow]:
        return self._page_of(BatchRow, "batches", page, owner, now)

    def _page_of(
        self, kind: type[Row], table: str, page: Page, owner: str, now: float, where: str = "TRUE", *values: object
    ) -> list[Row]:
        """Return one page of the owner's unexpired rows. The first column is the id."""
        sign, order = (">", "ASC") if page.ascends else ("<", "DESC")
        table, columns = f"splitfuse_{table}", kind.__slots__
        if page.after is not None:
            where += f" AND num {sign} (SELECT num FROM {table} WHERE owner = %s AND {columns[0]} = %s)"
            values = (*values, owner, _text(page.after))
        select = f"SELECT {', '.join(columns)} FROM {table} WHERE owner = %s AND expires > %s"
        query = f"{select} AND {where} ORDER BY num {order} LIMIT %s"
        return self._readable(self._read(kind, query, owner, now, *values, page.limit))

    def unfinished_batches(self) -> list[BatchRow]:
        """Like BatchStore.unfinished_batches, for all servers."""
        return self._readable(self._read(BatchRow, f"{_SELECT_BATCH} WHERE NOT is_over ORDER BY num"))

    def num_unfinished_batches(self) -> int:
        """Like BatchStore.num_unfinished_batches, for all servers."""
        return self._number("SELECT count(*) FROM splitfuse_batches WHERE NOT is_over")

    def parts(self, file_id: str, *, after: int, limit: int) -> list[tuple[int, bytes]]:
        where = "WHERE file_id = %s AND number > %s ORDER BY number LIMIT %s"
        with self._connected() as db:
            # Binary, because a part's text form has twice as many bytes.
            query = f"SELECT number, body, part_sum FROM splitfuse_file_parts {where}"
            parts = whole_parts(file_id, db.execute(query, (file_id, after, limit), binary=True))
        if self._sealing is None or not parts:
            return parts
        seal = self._seals([file_id]).get(file_id)
        return [] if seal is None else [(number, seal.open(str(number), body)) for number, body in parts]

    def lines_done(self, batch_id: str, output_file_id: str, error_file_id: str) -> LinesDone:
        query = "SELECT number FROM splitfuse_file_parts WHERE file_id = %s"
        with self._connected() as db:
            completed, failed = (
                frozenset(number for (number,) in db.execute(query, (file_id,)))
                for file_id in (output_file_id, error_file_id)
            )
            begun = "SELECT line, num_crashes FROM splitfuse_begun_lines WHERE batch_id = %s"
            return LinesDone(completed, failed, dict(db.execute(begun, (batch_id,))))

    def num_file_bytes(self) -> int:
        return self._number("SELECT coalesce(sum(num_bytes), 0) FROM splitfuse_files WHERE state <> 'deleted'")

    def num_parts(self, file_id: str) -> int:
        return self._number("SELECT count(*) FROM splitfuse_file_parts WHERE file_id = %s", file_id)

    def file_bytes(self, file_id: str) -> int:
        overhead = 0 if self._sealing is None else OVERHEAD_BYTES
        query = "SELECT coalesce(sum(length(body) - %s), 0) FROM splitfuse_file_parts WHERE file_id = %s"
        return self._number(query, overhead, file_id)

    # Methods for servers that share a database.

    def held_batches(self) -> set[str]:
        """Return the unfinished batches that this server holds."""
        query = "SELECT batch_id FROM splitfuse_batches WHERE NOT is_over AND holder = %s"
        with self._connected() as db:
            return {batch_id for (batch_id,) in db.execute(query, (self._me,))}

    def claim_batches(self, *, limit: int | None) -> list[BatchRow]:
        """Claim the oldest unfinished batches that no living server holds.

        A line that was running when its server died counts one more crash, and is no longer marked as running.
        """
        with self._changing() as db:
            free = [batch_id for (batch_id,) in db.execute(_FREE, (self._model, limit))]
            if not free:
                return []
            claimed = sorted(db.execute(_CLAIM, (self._me, free)).fetchall())
            rows = [BatchRow(*columns) for _, *columns in claimed]
            batch_ids = [row.batch_id for row in rows]
            files = "UPDATE splitfuse_files SET holder = %s WHERE batch_id = ANY(%s) AND state = 'partial'"
            db.execute(files, (self._me, batch_ids))
            db.execute(_CLAIM_LINES, (batch_ids,))
        return self._readable(rows)

    def release_batches(self) -> None:
        """Let other servers claim this server's batches at once."""
        with self._changing() as db:
            self._release(db)

    def _release(self, db: "psycopg.Connection[Any]") -> None:
        release = "UPDATE splitfuse_batches SET holder = 0 WHERE NOT is_over AND holder = %s RETURNING batch_id"
        batch_ids = [batch_id for (batch_id,) in db.execute(release, (self._me,))]
        db.execute("UPDATE splitfuse_begun_lines SET is_running = FALSE WHERE batch_id = ANY(%s)", (batch_ids,))

    def _take_batches_over(self) -> bool:
        """Claim all free batches at the start of a process. Returns True if none of their lines was running."""
        running = """SELECT FROM splitfuse_begun_lines JOIN splitfuse_batches AS batch USING (batch_id)
            WHERE is_running AND NOT is_over AND holder <> %s LIMIT 1"""
        with self._changing() as db:
            db.execute(_CUT_UPLOADS)
            is_clean = db.execute(running, (self._me,)).fetchone() is None
        self.claim_batches(limit=None)
        return is_clean

    def _sweep_batches(self, now: float) -> None:
        """Delete expired rows and some parts of one deleted file, unless another server is sweeping."""
        with self._changing() as db:
            lock_row = db.execute("SELECT pg_try_advisory_xact_lock(%s)", (_SWEEP_LOCK,)).fetchone()
            if lock_row is None or not lock_row[0]:
                return
            db.execute(_SWEEP_BATCHES, (now,))
            db.execute(_CUT_UPLOADS)
            db.execute(
                "UPDATE splitfuse_files SET state = 'deleted' WHERE expires <= %s AND state <> 'deleted'", (now,)
            )
            deleted = "SELECT file_id FROM splitfuse_files WHERE state = 'deleted' ORDER BY num LIMIT 1"
            for (file_id,) in db.execute(deleted).fetchall():
                swept = db.execute(_SWEEP_PARTS, {"file_id": file_id, "limit": _SWEPT_PARTS})
                if swept.rowcount < _SWEPT_PARTS:
                    db.execute("DELETE FROM splitfuse_files WHERE file_id = %s", (file_id,))

    def _sealed(self, row: Row) -> Row:
        return sealed_row(row, self._sealing)

    def _opened(self, rows: Sequence[Row]) -> Row | None:
        """Open the row, if there is one."""
        return opened_row(rows[0], self._sealing) if rows else None

    def _readable(self, rows: Sequence[Row]) -> list[Row]:
        return list(opened_rows(rows, self._sealing))

    def _seals(self, file_ids: Iterable[str]) -> dict[str, Seal]:
        """Return the seals of these files' parts by file id, without deleted files."""
        if self._sealing is None:
            return {}
        files = self._read(FileRow, f"{_SELECT_FILE} WHERE file_id = ANY(%s)", [*file_ids])
        return {file.file_id: seal for file in files if (seal := self._sealing.file_seal(file)) is not None}

    def _sealed_parts(self, parts: Sequence[tuple[str, int, bytes]]) -> Sequence[tuple[str, int, bytes]]:
        """Seal the parts of files that still exist."""
        if self._sealing is None:
            return parts
        seals = self._seals({file_id for file_id, _, _ in parts})
        return [
            (file_id, number, seals[file_id].seal(str(number), body))
            for file_id, number, body in parts
            if file_id in seals
        ]

    def _read(self, kind: Callable[..., T], query: str, *values: object) -> list[T]:
        with self._connected() as db:
            return [kind(*row) for row in db.execute(query, values)]

    def _number(self, query: str, *values: object) -> int:
        with self._connected() as db:
            row: Sequence[Any] | None = db.execute(query, values).fetchone()
            return 0 if row is None else int(row[0])


def _values(row: FileRow | BatchRow) -> dict[str, object]:
    return {name: getattr(row, name) for name in type(row).__slots__}


def _text(text: str) -> str:
    """Replace NUL characters, which PostgreSQL text cannot store and no id contains."""
    return text.replace("\0", "\ufffd")
