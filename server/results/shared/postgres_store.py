"""PostgresStore: kept jobs, files and batches in a PostgreSQL database that several servers share.

Each server is a holder: a unique number, never reused, and a lease that the server renews. Every writing transaction
locks the holder's row and fails if the row is marked dead. Once a server's lease has run out and another server has
marked it, none of its later writes succeed: the number fences it. All times are the database's clock.
"""

import contextlib
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import psycopg

from ....engine.errors import ConfigError
from ..durable.integrity.checksum import checksum
from ..durable.records import Changes, JobRow, Webhook
from ..durable.sealing import Sealing, new_mark
from ..durable.store import StoreError
from .postgres.batch_tables import BatchTables
from .postgres.schema import SCHEMA_VERSION, migrate

_COLUMNS = ", ".join(JobRow.__slots__)
_SELECT = f"SELECT {_COLUMNS} FROM splitfuse_jobs"
# Whoever adds a job holds its key's lock and found no job, so one that has the key has expired.
_FREE_KEY = "DELETE FROM splitfuse_jobs WHERE owner = %s AND idempotency_key = %s AND status IS NOT NULL"
# A server counts only its own segments, so its next segment's number may be far too low a bound.
_FIRST_SEGMENT = "GREATEST(%(first_segment)s, (SELECT coalesce(max(num), 0) + 1 FROM splitfuse_segments))"
_VALUES = ", ".join(_FIRST_SEGMENT if name == "first_segment" else f"%({name})s" for name in JobRow.__slots__)
_INSERT = f"INSERT INTO splitfuse_jobs ({_COLUMNS}, holder, model) VALUES ({_VALUES}, %(holder)s, %(model)s)"
# A connection that breaks during a commit leaves its outcome unknown. The retried segment has the same number and
# contains all of the first one's events.
_INSERT_SEGMENT = """
INSERT INTO splitfuse_segments (holder, part, body) VALUES (%s, %s, %s)
ON CONFLICT (holder, part) DO UPDATE SET body = EXCLUDED.body"""
_END = """
UPDATE splitfuse_jobs SET status = %s, finished = %s, expires = %s, result = %s, result_sum = %s, is_running = FALSE
WHERE num = %s AND holder = %s"""
# Only a server with a valid lease marks others: after a database outage all leases have run out, but most servers live.
_MARK_DEAD = """
UPDATE splitfuse_holders SET is_dead = TRUE
WHERE EXISTS (SELECT FROM splitfuse_holders WHERE num = %(me)s AND expires > now() AND NOT is_dead) AND num IN
  (SELECT num FROM splitfuse_holders WHERE expires < now() AND NOT is_dead AND num <> %(me)s FOR UPDATE SKIP LOCKED)"""
# "Is marked dead", not "is missing": the row of a new server may be absent from this statement's snapshot.
_CLAIM = f"""
UPDATE splitfuse_jobs
SET holder = %(me)s, num_attempts = num_attempts + 1, num_crashes = num_crashes + is_running::int, is_running = FALSE
WHERE num IN (
  SELECT num FROM splitfuse_jobs AS job WHERE status IS NULL AND model = %(model)s AND
    EXISTS (SELECT FROM splitfuse_holders AS holder WHERE holder.num = job.holder AND is_dead)
  ORDER BY created, num LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
RETURNING {_COLUMNS}"""
_FORGET_HOLDERS = """
DELETE FROM splitfuse_holders AS dead WHERE is_dead AND
  NOT EXISTS (SELECT FROM splitfuse_jobs WHERE holder = dead.num AND status IS NULL)"""
_TELL = """
INSERT INTO splitfuse_webhooks SELECT seq_id, %s, %s, %s, 0, 0.0 FROM splitfuse_jobs WHERE num = %s AND holder = %s
ON CONFLICT DO NOTHING"""
_NUMBER_BITS = 32  # width of a job's number, below the holder's number
_CONNECT_S = 5


@dataclass(frozen=True, slots=True)
class Holder:
    """Server that holds jobs and batches, and its URL."""

    num: int
    url: str


class PostgresStore(BatchTables):
    """BatchStore for one of several servers. A server that lost its lease creates a new one."""

    def __init__(
        self,
        conninfo: str,
        *,
        url: str,
        model: str,
        lease_s: float,
        is_synced: bool = True,
        sealing: Sealing | None = None,
    ) -> None:
        """Connect and join the servers.

        `url` is where other servers reach this one; this one takes over jobs of `model`. `sealing` encrypts files and
        batches; jobs arrive encrypted. Raises ConfigError.
        """
        self._sealing = sealing
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
            mark = self._value("SELECT key_mark FROM splitfuse_meta")
            if (mark := new_mark(self._sealing, mark, is_new=version == 0, results=place)) is not None:
                self._db.execute("UPDATE splitfuse_meta SET key_mark = %s", (mark,))

    def _join(self, url: str) -> int:
        insert = "INSERT INTO splitfuse_holders (url, expires) VALUES (%s, now() + make_interval(secs => %s))"
        return int(self._value(f"{insert} RETURNING num", url, self._lease_s))

    def commit(self, changes: Changes) -> None:
        if not changes:
            return
        me = self.holder.num
        with self._changing() as db, db.cursor() as cursor:
            if changes.accepted:
                cursor.executemany(_FREE_KEY, [(row.owner, row.idempotency_key) for row in changes.accepted])
                cursor.executemany(_INSERT, [self._row(row) for row in changes.accepted])
            if changes.segment is not None:
                cursor.execute(_INSERT_SEGMENT, (me, *changes.segment))
            if changes.endings:
                ends = [
                    (end.status, end.finished, end.expires, end.result, end.result_sum, end.num, me)
                    for end in changes.endings
                ]
                cursor.executemany(_END, ends)
                hooks = [(end.webhook, end.status, end.finished, end.num, me) for end in changes.endings if end.webhook]
                cursor.executemany(_TELL, hooks)
            if changes.begun:
                begin = "UPDATE splitfuse_jobs SET is_running = TRUE WHERE num = ANY(%s) AND holder = %s"
                cursor.execute(begin, (changes.begun, me))
            if changes.renewed:
                renew = "UPDATE splitfuse_jobs SET request = %s, request_sum = %s WHERE num = %s AND holder = %s"
                renewed = [(request, checksum(num, request), num, me) for num, request in changes.renewed]
                cursor.executemany(renew, renewed)
            if changes.deleted:
                delete = "DELETE FROM splitfuse_jobs WHERE seq_id = ANY(%s) AND (holder = %s OR status IS NOT NULL)"
                cursor.execute(delete, (changes.deleted, me))
                cursor.execute("DELETE FROM splitfuse_webhooks WHERE seq_id = ANY(%s)", (changes.deleted,))

    def last_numbers(self) -> tuple[int, int]:
        """Like Store.last_numbers, but only this server uses job numbers above the first number."""
        with self._connected():
            num_segments = self._value("SELECT coalesce(max(num), 0) FROM splitfuse_segments")
        return self.holder.num << _NUMBER_BITS, int(num_segments)

    def begin_process(self) -> bool:
        """Like Store.begin_process, but takes over the jobs and batches of dead servers."""
        self.beat()
        mine = (self.holder.num,)
        with self._connected() as db:
            crashed = "SELECT FROM splitfuse_jobs WHERE status IS NULL AND is_running AND holder <> %s LIMIT 1"
            is_clean = db.execute(crashed, mine).fetchone() is None
        with self.claiming(limit=None):
            return self._take_batches_over() and is_clean

    def end_process(self, *, has_crashed: bool = False) -> None:
        """Like Store.end_process, but lets other servers take over this one's jobs and batches at once."""
        with self._changing() as db:
            if not has_crashed:
                self._release(db)
                not_running = "UPDATE splitfuse_jobs SET is_running = FALSE WHERE holder = %s AND status IS NULL"
                db.execute(not_running, (self.holder.num,))
            db.execute("UPDATE splitfuse_holders SET is_dead = TRUE WHERE num = %s", (self.holder.num,))

    def unfinished(self) -> list[JobRow]:
        """Like Store.unfinished, for all servers."""
        return self._rows(f"{_SELECT} WHERE status IS NULL ORDER BY created, num")

    def segments(self, first: int) -> Iterable[bytes]:
        """Like Store.segments, for all servers."""
        with self._connected() as db:
            for (body,) in db.execute("SELECT body FROM splitfuse_segments WHERE num >= %s ORDER BY num", (first,)):
                yield body

    def find(self, seq_id: str) -> JobRow | None:
        return next(iter(self._rows(f"{_SELECT} WHERE seq_id = %s", seq_id)), None)

    def find_key(self, owner: str, idempotency_key: bytes) -> JobRow | None:
        rows = self._rows(f"{_SELECT} WHERE owner = %s AND idempotency_key = %s", owner, idempotency_key)
        return next(iter(rows), None)

    def page(self, owner: str, *, before: tuple[float, str] | None, limit: int, status: str | None) -> list[JobRow]:
        created, seq_id = before or (math.inf, "")
        where = "owner = %s AND status IS NOT NULL AND (%s::text IS NULL OR status = %s)"
        query = f"{_SELECT} WHERE {where} AND (created, seq_id) < (%s, %s) ORDER BY created DESC, seq_id DESC LIMIT %s"
        return self._rows(query, owner, status, status, created, seq_id, limit)

    def delete_owner(self, owner: str) -> list[str]:
        with self._changing() as db:
            mine = "SELECT seq_id FROM splitfuse_jobs WHERE owner = %s"
            db.execute(f"DELETE FROM splitfuse_webhooks WHERE seq_id IN ({mine})", (owner,))
            deleted = db.execute("DELETE FROM splitfuse_jobs WHERE owner = %s RETURNING seq_id", (owner,))
            return [seq_id for (seq_id,) in deleted]

    def due_targets(self, now: float) -> list[str]:
        query = "SELECT DISTINCT target FROM splitfuse_webhooks WHERE next_try <= %s"
        with self._connected() as db:
            return [target for (target,) in db.execute(query, (now,))]

    def due_webhooks(self, now: float, *, limit: int, target: str | None = None) -> list[Webhook]:
        where = "WHERE next_try <= %s AND coalesce(%s, target) = target ORDER BY next_try LIMIT %s"
        query = f"SELECT {', '.join(Webhook._fields)} FROM splitfuse_webhooks {where}"
        with self._connected() as db:
            return [Webhook(*row) for row in db.execute(query, (now, target, limit))]

    def begin_webhook(self, webhook: Webhook, *, next_try: float) -> bool:
        begin = "UPDATE splitfuse_webhooks SET num_tries = num_tries + 1, next_try = %s"
        with self._changing() as db:
            values = (next_try, webhook.seq_id, webhook.num_tries)
            return bool(db.execute(f"{begin} WHERE seq_id = %s AND num_tries = %s", values).rowcount)

    def forget_webhook(self, seq_id: str) -> None:
        with self._changing() as db:
            db.execute("DELETE FROM splitfuse_webhooks WHERE seq_id = %s", (seq_id,))

    def num_bytes_of(self, owner: str) -> int:
        sizes = "coalesce(sum(pg_column_size(request) + coalesce(pg_column_size(result), 0)), 0)"
        with self._connected():
            return int(self._value(f"SELECT {sizes} FROM splitfuse_jobs WHERE owner = %s", owner))

    def sweep(self, now: float, *, max_jobs: int) -> int:
        self._sweep_batches(now)
        with self._changing() as db:
            oldest = "coalesce((SELECT min(first_segment) FROM splitfuse_jobs WHERE status IS NULL), 1::bigint << 62)"
            db.execute(f"DELETE FROM splitfuse_segments WHERE num < {oldest}")
            db.execute(_FORGET_HOLDERS)
            expired = "SELECT num FROM splitfuse_jobs WHERE status IS NOT NULL AND expires <= %s LIMIT %s"
            swept = db.execute(f"DELETE FROM splitfuse_jobs WHERE num IN ({expired})", (now, max_jobs))
            return int(swept.rowcount)

    def close(self) -> None:
        self._db.close()

    # Methods for servers that share a database.

    def beat(self) -> bool:
        """Renew the lease, and mark servers with expired leases as dead.

        Returns False if this server is marked itself.
        """
        with self._connected() as db, db.transaction():
            db.execute("SET LOCAL synchronous_commit = off")  # losing a beat together with the database does no harm
            db.execute(_MARK_DEAD, {"me": self.holder.num})
            renew = "UPDATE splitfuse_holders SET expires = now() + make_interval(secs => %s)"
            beat = db.execute(f"{renew} WHERE num = %s AND NOT is_dead", (self._lease_s, self.holder.num))
            return bool(beat.rowcount)

    @contextlib.contextmanager
    def claiming(self, *, limit: int | None) -> Iterator[list[JobRow]]:
        """Claim the oldest unfinished jobs of dead servers; they become this server's if the block ends without an
        error.

        A job that was running when its server died counts one more crash, and is no longer marked as running.
        """
        with self._changing() as db:
            claim = db.execute(_CLAIM, {"me": self.holder.num, "model": self._model, "limit": limit})
            yield sorted((JobRow(*found) for found in claim), key=lambda row: (row.created, row.num))

    def holder_of(self, seq_id: str) -> Holder | None:
        """Return the server that holds a job, if it is alive."""
        return self._living_holder("splitfuse_jobs", "seq_id", seq_id)

    def batch_holder(self, batch_id: str) -> Holder | None:
        """Return the server that holds a batch, if it is alive."""
        return self._living_holder("splitfuse_batches", "batch_id", batch_id)

    def _living_holder(self, table: str, column: str, held_id: str) -> Holder | None:
        query = f"""SELECT holder.num, url FROM {table} JOIN splitfuse_holders AS holder ON holder.num = holder
            WHERE {column} = %s AND NOT is_dead AND holder.expires > now()"""
        with self._connected() as db:
            row = db.execute(query, (held_id,)).fetchone()
        return None if row is None else Holder(*row)

    def try_lock(self, number: int) -> bool:
        """Try to take a lock that only one server can hold, until the server unlocks it or its connection ends."""
        with self._connected():
            return bool(self._value("SELECT pg_try_advisory_lock(%s)", number))

    def unlock(self, number: int) -> None:
        """Release a lock of `try_lock`."""
        with self._connected():
            self._value("SELECT pg_advisory_unlock(%s)", number)

    @property
    def _me(self) -> int:
        return self.holder.num

    @contextlib.contextmanager
    def _changing(self) -> Iterator["psycopg.Connection[Any]"]:
        with self._connected() as db, db.transaction():
            is_alive = "SELECT FROM splitfuse_holders WHERE num = %s AND NOT is_dead FOR SHARE"
            if db.execute(is_alive, (self.holder.num,)).fetchone() is None:
                raise StoreError(
                    "another server took this one's jobs over: nothing was heard of it for --results-lease"
                )
            yield db

    @contextlib.contextmanager
    def _connected(self) -> Iterator["psycopg.Connection[Any]"]:
        try:
            if self._db.closed:
                self._db = self._connect()
            yield self._db
        except psycopg.Error as exc:
            raise StoreError(_reason(exc)) from exc

    def _rows(self, query: str, *values: object) -> list[JobRow]:
        with self._connected() as db:
            return [JobRow(*row) for row in db.execute(query, values)]

    def _value(self, query: str, *values: object) -> Any:
        row = self._db.execute(query, values).fetchone()
        return None if row is None else row[0]

    def _row(self, row: JobRow) -> dict[str, object]:
        row = row.summed()
        values = {name: getattr(row, name) for name in JobRow.__slots__}
        return values | {"holder": self.holder.num, "model": self._model}


def _scheme(conninfo: str) -> str:
    """Shorten a connection string to its scheme: the rest may hold a password."""
    return f"{conninfo.partition('://')[0]}://…"


def _reason(exc: psycopg.Error) -> str:
    return f"PostgreSQL says: {' '.join(str(exc).split())}"
