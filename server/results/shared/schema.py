"""Tables of the PostgreSQL database. The first server creates them, and each later version migrates them.

Servers of an earlier version keep running meanwhile: no table or column that they use changes its meaning.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import psycopg

# Statements that migrate each version to the next; the first one creates version 1.
_MIGRATIONS = (
    """
CREATE TABLE splitfuse_meta (version INTEGER NOT NULL);
INSERT INTO splitfuse_meta VALUES (0);
CREATE TABLE splitfuse_holders (
  num BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, url TEXT NOT NULL, expires TIMESTAMPTZ NOT NULL,
  is_dead BOOLEAN NOT NULL DEFAULT FALSE);
CREATE TABLE splitfuse_jobs (
  num BIGINT PRIMARY KEY, seq_id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL, created DOUBLE PRECISION NOT NULL,
  request TEXT NOT NULL, first_segment BIGINT NOT NULL, is_running BOOLEAN NOT NULL,
  num_attempts INTEGER NOT NULL, num_crashes INTEGER NOT NULL, status TEXT, finished DOUBLE PRECISION,
  expires DOUBLE PRECISION, result TEXT, idempotency_key BYTEA, body_digest BYTEA,
  holder BIGINT NOT NULL, model TEXT NOT NULL);
CREATE INDEX splitfuse_jobs_unfinished ON splitfuse_jobs (created, num) WHERE status IS NULL;
CREATE INDEX splitfuse_jobs_expiring ON splitfuse_jobs (expires) WHERE status IS NOT NULL;
CREATE INDEX splitfuse_jobs_of_owner ON splitfuse_jobs (owner, created, seq_id);
CREATE UNIQUE INDEX splitfuse_jobs_by_key ON splitfuse_jobs (owner, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
CREATE TABLE splitfuse_segments (
  num BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, holder BIGINT NOT NULL, part BIGINT NOT NULL,
  body BYTEA NOT NULL, UNIQUE (holder, part));
""",
    # Some databases of version 1 already have the first two tables or columns. Only earlier servers send webhooks.
    """
ALTER TABLE splitfuse_meta ADD COLUMN IF NOT EXISTS key_mark BYTEA;
CREATE TABLE IF NOT EXISTS splitfuse_webhooks (
  seq_id TEXT PRIMARY KEY, target TEXT NOT NULL, status TEXT NOT NULL, finished DOUBLE PRECISION NOT NULL,
  num_tries INTEGER NOT NULL, next_try DOUBLE PRECISION NOT NULL);
CREATE TABLE splitfuse_files (
  num BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, file_id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
  created DOUBLE PRECISION NOT NULL, expires DOUBLE PRECISION NOT NULL, purpose TEXT NOT NULL,
  filename TEXT NOT NULL, num_bytes BIGINT NOT NULL, num_lines BIGINT NOT NULL, state TEXT NOT NULL,
  holder BIGINT NOT NULL, batch_id TEXT);
CREATE INDEX splitfuse_files_of_owner ON splitfuse_files (owner, num);
CREATE INDEX splitfuse_files_of_batch ON splitfuse_files (batch_id) WHERE batch_id IS NOT NULL;
CREATE INDEX splitfuse_files_expiring ON splitfuse_files (expires);
CREATE INDEX splitfuse_files_not_ready ON splitfuse_files (num) WHERE state <> 'ready';
CREATE TABLE splitfuse_file_parts (
  file_id TEXT NOT NULL, number BIGINT NOT NULL, body BYTEA NOT NULL, PRIMARY KEY (file_id, number));
CREATE TABLE splitfuse_batches (
  num BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, batch_id TEXT NOT NULL UNIQUE, owner TEXT NOT NULL,
  created DOUBLE PRECISION NOT NULL, expires DOUBLE PRECISION NOT NULL, body TEXT NOT NULL,
  is_over BOOLEAN NOT NULL, idempotency_key BYTEA, body_digest BYTEA,
  holder BIGINT NOT NULL, model TEXT NOT NULL);
CREATE INDEX splitfuse_batches_of_owner ON splitfuse_batches (owner, num);
CREATE INDEX splitfuse_batches_unfinished ON splitfuse_batches (num) WHERE NOT is_over;
CREATE INDEX splitfuse_batches_expiring ON splitfuse_batches (expires);
CREATE UNIQUE INDEX splitfuse_batches_by_key ON splitfuse_batches (owner, idempotency_key)
  WHERE idempotency_key IS NOT NULL;
CREATE TABLE splitfuse_begun_lines (
  batch_id TEXT NOT NULL, line BIGINT NOT NULL, num_crashes INTEGER NOT NULL, is_running BOOLEAN NOT NULL,
  PRIMARY KEY (batch_id, line));
""",
    # Rows of earlier versions have no checksums.
    """
ALTER TABLE splitfuse_jobs ADD COLUMN row_sum BIGINT, ADD COLUMN request_sum BIGINT, ADD COLUMN result_sum BIGINT;
ALTER TABLE splitfuse_files ADD COLUMN row_sum BIGINT;
ALTER TABLE splitfuse_batches ADD COLUMN row_sum BIGINT;
ALTER TABLE splitfuse_file_parts ADD COLUMN part_sum BIGINT;
""",
)
SCHEMA_VERSION = len(_MIGRATIONS)
_LOCK = 0x73706C6974  # makes servers that start at once create the tables only once


def migrate(db: "psycopg.Connection[Any]") -> int:
    """Migrate the tables to SCHEMA_VERSION, all or nothing.

    Returns their earlier version; a later version is left as it is.
    """
    with db.transaction():
        db.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        version = _version(db)
        for migration in _MIGRATIONS[version:]:
            db.execute(migration)
        if version < SCHEMA_VERSION:
            db.execute("UPDATE splitfuse_meta SET version = %s", (SCHEMA_VERSION,))
    return version


def _version(db: "psycopg.Connection[Any]") -> int:
    row = db.execute("SELECT to_regclass('splitfuse_meta') IS NULL").fetchone()
    if row is None or row[0]:
        return 0
    row = db.execute("SELECT version FROM splitfuse_meta").fetchone()
    return 0 if row is None else int(row[0])
