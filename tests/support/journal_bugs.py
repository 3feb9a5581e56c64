"""Bugs of the journal, the store and the resumption that show only after a crash, or a full disk."""

from dataclasses import replace
from typing import Any

from planted_bug import Bugs, Method, plant

from splitfuse.server.results.durable.durable_backend import DurableBackend
from splitfuse.server.results.durable.journal import Journal
from splitfuse.server.results.durable.records import Changes
from splitfuse.server.results.durable.sqlite_store import SqliteStore
from splitfuse.server.results.durable.unfinished_job import BegunJob

BUGS: Bugs = {}


@plant(BUGS, Journal, "_write_changes")
async def answers_do_not_wait_for_the_disk(right: Method, self: Any, **changes: Any) -> None:
    right(self, **changes).send(None)


@plant(BUGS, Journal, "sink")
def first_tokens_of_a_fork_go_before_its_row(right: Method, self: Any, kept: Any) -> Any:
    return lambda delta: self._entries.put((kept, delta))


@plant(BUGS, Journal, "_commit")
def events_that_a_full_disk_refused_are_forgotten(right: Method, self: Any, entries: Any) -> Any:
    failure = right(self, entries)
    self._unwritten_events = [] if failure else self._unwritten_events
    return failure


@plant(BUGS, Journal, "_commit")
def endings_that_a_full_disk_refused_are_forgotten(right: Method, self: Any, entries: Any) -> Any:
    failure = right(self, entries)
    self._unwritten.endings = [] if failure else self._unwritten.endings
    return failure


@plant(BUGS, SqliteStore, "commit")
def endings_have_a_transaction_of_their_own(right: Method, self: Any, changes: Any) -> None:
    right(self, replace(changes, endings=[]))
    if changes.endings:
        right(self, Changes(endings=changes.endings))


@plant(BUGS, SqliteStore, "begin_process")
def jobs_that_wait_for_their_turn_count_a_crash(right: Method, self: Any) -> Any:
    is_clean = right(self)
    self._db.execute("UPDATE jobs SET is_running = 1 WHERE status IS NULL")
    return is_clean


@plant(BUGS, DurableBackend, "begin")
async def jobs_run_before_the_disk_knows(right: Method, self: Any, jobs: Any) -> None: ...


@plant(BUGS, BegunJob, "_take")
def ends_of_outputs_are_counted_again_after_a_crash(
    right: Method, self: Any, event: Any, *more: Any, **options: Any
) -> None:
    right(self, event, *more, **options)
    self._kept.num_left = len(self._kept.job.outputs)


@plant(BUGS, DurableBackend, "find_key")
async def key_of_an_unfinished_job_is_free(right: Method, self: Any, owner: str, key: Any) -> Any:
    return None
