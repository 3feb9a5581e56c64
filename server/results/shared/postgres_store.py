"""PostgresStore: kept jobs, files and batches in a PostgreSQL database that several servers share.

Each server is a holder: a unique number, never reused, and a lease that the server renews. Every writing transaction
locks the holder's row and fails if the row is marked dead. Once a server's lease has run out and another server has
marked it, none of its later writes succeed: the number fences it. All times are the database's clock.

A batch, the files it writes and a running upload have a holder; writes from any other server match no row. A ready file
has no holder, so any server may delete it. A holder is a server of `splitfuse_holders`, or 0.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import psycopg

from ....engine.errors import ConfigError
from ..durable.batch_rows import BatchRow, FileRow
from ..durable.records import JobRow
from ..durable.sql import Dialect, Session
from ..durable.store import DELETE_FILES, JOB_COLUMNS, Store, StoreError, encrypted, whole_rows
from .schema import SCHEMA_VERSION, migrate

_NO_HOLDER = "NOT EXISTS (SELECT FROM splitfuse_holders AS each WHERE each.num = holder AND NOT is_dead)"
_DIALECT = Dialect(
    tables="splitfuse_",
    mark="%s",
    # A connection that breaks during a commit leaves its outcome unknown. The retried segment has the same number and
    # contains all of the first one's events.
    known_segment="ON CONFLICT (holder, part) DO UPDATE SET body = excluded.body",
    # A server counts only its own segments, so its next segment's number may be far too low a bound.
    first_segment="GREATEST(?, (SELECT coalesce(max(num), 0) + 1 FROM splitfuse_segments))",
    num_bytes="pg_column_size(request) + coalesce(pg_column_size(result), 0)",
    # An unfinished batch that has expired belongs to a model that no server runs any more.
    is_out_of_use=f"(is_over OR {_NO_HOLDER})",
)
# Only a server with a valid lease marks others: after a database outage all leases have run out, but most servers live.
_MARK_DEAD = """
UPDATE splitfuse_holders SET is_dead = TRUE
WHERE EXISTS (SELECT FROM splitfuse_holders WHERE num = ? AND expires > now() AND NOT is_dead) AND num IN
  (SELECT num FROM splitfuse_holders WHERE expires < now() AND NOT is_dead AND num <> ? FOR UPDATE SKIP LOCKED)"""
# "Is marked dead", not "is missing": the row of a new server may be absent from this statement's snapshot.
_CLAIM = f"""
UPDATE splitfuse_jobs
SET holder = ?, num_attempts = num_attempts + 1, num_crashes = num_crashes + is_running::int, is_running = FALSE
WHERE num IN (
  SELECT num FROM splitfuse_jobs AS job WHERE status IS NULL AND model = ? AND
    EXISTS (SELECT FROM splitfuse_holders AS holder WHERE holder.num = job.holder AND is_dead)
  ORDER BY created, num LIMIT ? FOR UPDATE SKIP LOCKED)
RETURNING {JOB_COLUMNS}"""
_FORGET_HOLDERS = """
DELETE FROM splitfuse_holders AS dead WHERE is_dead AND
  NOT EXISTS (SELECT FROM splitfuse_jobs WHERE holder = dead.num AND status IS NULL)"""
# Two statements: the first locks rows. The second checks again, and sees every server that could have changed them.
_FREE_BATCHES = f"""
SELECT batch_id FROM splitfuse_batches WHERE NOT is_over AND model = ? AND {_NO_HOLDER}
ORDER BY num LIMIT ? FOR UPDATE SKIP LOCKED"""
_CLAIM_BATCHES = f"""
UPDATE splitfuse_batches SET holder = ? WHERE batch_id = ANY(?) AND NOT is_over AND {_NO_HOLDER}
RETURNING num, {", ".join(BatchRow.__slots__)}"""
_CLAIM_LINES = """
UPDATE splitfuse_begun_lines SET num_crashes = num_crashes + is_running::int, is_running = FALSE
WHERE batch_id = ANY(?)"""
_CUT_UPLOADS = f"{DELETE_FILES} state = 'partial' AND purpose = 'batch' AND {_NO_HOLDER}"
_SWEEP_LOCK = 0x7377656570  # held by the one server that sweeps
_NUMBER_BITS = 32  # width of a job's number, below the holder's number
_CONNECT_S = 5


@dataclass(frozen=True, slots=True)
class Holder:
    """Server that holds jobs and batches, and its URL."""

    num: int
    url: str


class PostgresStore(Store):
    """Store for one of several servers. A server that lost its lease creates a new one."""

    def __init__(self, conninfo: str, *, url: str, model: str, lease_s: float, is_synced: bool = True) -> None:
        """Connect and join the servers.

        `url` is where other servers reach this one; this one takes over jobs of `model`. Raises ConfigError.
        """
        super().__init__(_DIALECT)
        self._conninfo = conninfo
        self._model = model
        self._lease_s = lease_s
        self._is_synced = is_synced
        try:
            self._db = self._connect()
            with contextlib.ExitStack() as stack:
                stack.callback(self._db.close)
                self._prepare()
                self.holder = Holder(self._join(url), url)
                stack.pop_all()
        except psycopg.Error as exc:
            raise ConfigError(f"--results {_scheme(conninfo)}: {_reason(exc)}") from exc

    def _connect(self) -> "psycopg.Connection[Any]":
        lease_ms = max(1, round(self._lease_s * 1000))
        db = psycopg.connect(
            self._conninfo,
            autocommit=True,
            client_encoding="utf8",
            connect_timeout=_CONNECT_S,
            tcp_user_timeout=lease_ms,
        )
        # Without it, a server that hangs inside a transaction would keep its row locked, and could not be marked dead.
        db.execute(f"SET idle_in_transaction_session_timeout = {lease_ms}")
        if not self._is_synced:
            db.execute("SET synchronous_commit = off")
        return db

    def _prepare(self) -> None:
        place = _scheme(self._conninfo)
        with self._db.transaction():
            version = migrate(self._db)
            if version > SCHEMA_VERSION:
                raise ConfigError(
                    f"--results {place}: a later version of splitfuse made the tables (format {version}, this one "
                    f"knows {SCHEMA_VERSION}); use that version or another database"
                )
            if self._session.execute("SELECT key_mark FROM splitfuse_meta").fetchone()[0] is not None:
                raise encrypted(place)

    def _join(self, url: str) -> int:
        insert = "INSERT INTO splitfuse_holders (url, expires) VALUES (?, now() + make_interval(secs => ?))"
        return int(self._session.execute(f"{insert} RETURNING num", url, self._lease_s).fetchone()[0])

    def last_numbers(self) -> tuple[int, int]:
        """Like Store.last_numbers, but only this server uses job numbers above the first number."""
        return self.holder.num << _NUMBER_BITS, self._int("SELECT max(num) FROM splitfuse_segments")

    def begin_process(self) -> bool:
        """Like Store.begin_process, but takes over the jobs and batches of dead servers."""
        self.beat()
        crashed = "SELECT 1 FROM splitfuse_jobs WHERE status IS NULL AND is_running AND holder <> ? LIMIT 1"
        is_clean = not self._column(crashed, self.holder.num)
        with self.claiming(limit=None):
            return self._take_batches_over() and is_clean

    def end_process(self, *, has_crashed: bool = False) -> None:
        """Like Store.end_process, but lets other servers take over this one's jobs and batches at once."""
        with self._changing() as db:
            if not has_crashed:
                self._release(db)
                not_running = "UPDATE splitfuse_jobs SET is_running = FALSE WHERE holder = ? AND status IS NULL"
                db.execute(not_running, self.holder.num)
            db.execute("UPDATE splitfuse_holders SET is_dead = TRUE WHERE num = ?", self.holder.num)

    def close(self) -> None:
        self._db.close()

    # Methods for servers that share a database.

    def beat(self) -> bool:
        """Renew the lease, and mark servers with expired leases as dead.

        Returns False if this server is marked itself.
        """
        with self._connected() as db, self._db.transaction():
            db.execute("SET LOCAL synchronous_commit = off")  # losing a beat together with the database does no harm
            db.execute(_MARK_DEAD, self.holder.num, self.holder.num)
            renew = "UPDATE splitfuse_holders SET expires = now() + make_interval(secs => ?)"
            beat = db.execute(f"{renew} WHERE num = ? AND NOT is_dead", self._lease_s, self.holder.num)
            return bool(beat.rowcount)

    @contextlib.contextmanager
    def claiming(self, *, limit: int | None) -> Iterator[list[JobRow]]:
        """Claim the oldest unfinished jobs of dead servers; they become this server's if the block ends without an
        error.

        A job that was running when its server died counts one more crash, and is no longer marked as running.
        """
        with self._changing() as db:
            claim = db.execute(_CLAIM, self.holder.num, self._model, limit)
            yield sorted((JobRow(*found) for found in claim), key=lambda row: (row.created, row.num))

    def holder_of(self, seq_id: str) -> Holder | None:
        """Return the server that holds a job, if it is alive."""
        return self._living_holder("splitfuse_jobs", "seq_id", seq_id)

    def batch_holder(self, batch_id: str) -> Holder | None:
        """Return the server that holds a batch, if it is alive."""
        return self._living_holder("splitfuse_batches", "batch_id", batch_id)

    def _living_holder(self, table: str, column: str, held_id: str) -> Holder | None:
        query = f"""SELECT holder.num, url FROM {table} JOIN splitfuse_holders AS holder ON holder.num = holder
            WHERE {column} = ? AND NOT is_dead AND holder.expires > now()"""
        return self._row(Holder, query, held_id)

    def try_lock(self, number: int) -> bool:
        """Try to take a lock that only one server can hold, until the server unlocks it or its connection ends."""
        return bool(self._int("SELECT pg_try_advisory_lock(?)", number))

    def unlock(self, number: int) -> None:
        """Release a lock of `try_lock`."""
        self._int("SELECT pg_advisory_unlock(?)", number)

    def held_batches(self) -> set[str]:
        """Return the unfinished batches that this server holds."""
        query = "SELECT batch_id FROM splitfuse_batches WHERE NOT is_over AND holder = ?"
        return set(self._column(query, self.holder.num))

    def claim_batches(self, *, limit: int | None) -> list[BatchRow]:
        """Claim the oldest unfinished batches that no living server holds.

        A line that was running when its server died counts one more crash, and is no longer marked as running.
        """
        me = self.holder.num
        with self._changing() as db:
            free = [batch_id for (batch_id,) in db.execute(_FREE_BATCHES, self._model, limit)]
            if not free:
                return []
            rows = [BatchRow(*columns) for _, *columns in sorted(db.execute(_CLAIM_BATCHES, me, free).fetchall())]
            batch_ids = [row.batch_id for row in rows]
            files = "UPDATE splitfuse_files SET holder = ? WHERE batch_id = ANY(?) AND state = 'partial'"
            db.execute(files, me, batch_ids)
            db.execute(_CLAIM_LINES, batch_ids)
        return whole_rows(rows)

    def release_batches(self) -> None:
        """Let other servers claim this server's batches at once."""
        with self._changing() as db:
            self._release(db)

    def _release(self, db: Session) -> None:
        release = "UPDATE splitfuse_batches SET holder = 0 WHERE NOT is_over AND holder = ? RETURNING batch_id"
        batch_ids = [batch_id for (batch_id,) in db.execute(release, self.holder.num)]
        db.execute("UPDATE splitfuse_begun_lines SET is_running = FALSE WHERE batch_id = ANY(?)", batch_ids)

    def _take_batches_over(self) -> bool:
        """Claim all free batches at the start of a process. Returns True if none of their lines was running."""
        running = """SELECT 1 FROM splitfuse_begun_lines JOIN splitfuse_batches AS batch USING (batch_id)
            WHERE is_running AND NOT is_over AND holder <> ? LIMIT 1"""
        with self._changing() as db:
            db.execute(_CUT_UPLOADS)
            is_clean = db.execute(running, self.holder.num).fetchone() is None
        self.claim_batches(limit=None)
        return is_clean

    def _sweep_batches(self, db: Session, now: float) -> None:
        """Like Store._sweep_batches, and forget dead servers, unless another server is sweeping."""
        if db.execute("SELECT pg_try_advisory_xact_lock(?)", _SWEEP_LOCK).fetchone()[0]:
            db.execute(_FORGET_HOLDERS)
            db.execute(_CUT_UPLOADS)
            super()._sweep_batches(db, now)

    def _mine(self, table: str) -> str:
        return f"splitfuse_{table}.holder = {self.holder.num}"

    def _more(self, row: JobRow | FileRow | BatchRow, *, batch_id: str | None = None) -> dict[str, object]:
        more = {"batch_id": batch_id} if isinstance(row, FileRow) else {"model": self._model}
        return {"holder": self.holder.num, **more}

    def _segment(self, number: int, body: bytes) -> dict[str, object]:
        return {"holder": self.holder.num, "part": number, "body": body}

    @property
    def _session(self) -> Session:
        # Binary, because a part's text form has twice as many bytes.
        return Session(partial(self._db.cursor, binary=True), self._dialect)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Session]:
        with self._connected() as session, self._db.transaction():
            is_alive = "SELECT FROM splitfuse_holders WHERE num = ? AND NOT is_dead FOR SHARE"
            if session.execute(is_alive, self.holder.num).fetchone() is None:
                raise StoreError(
                    "another server took this one's jobs over: nothing was heard of it for --results-lease"
                )
            yield session

    @contextlib.contextmanager
    def _connected(self) -> Iterator[Session]:
        try:
            if self._db.closed:
                self._db = self._connect()
            yield self._session
        except psycopg.Error as exc:
            raise StoreError(_reason(exc)) from exc


def _scheme(conninfo: str) -> str:
    """Shorten a connection string to its scheme: the rest may hold a password."""
    return f"{conninfo.partition('://')[0]}://…"


def _reason(exc: psycopg.Error) -> str:
    return f"PostgreSQL says: {' '.join(str(exc).split())}"
