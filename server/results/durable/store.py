"""Store: the port to kept jobs on disk. Only one thread uses a store."""

import re
from collections.abc import Iterable
from typing import Protocol

from ...api.listing import Page
from .batch_rows import BatchChanges, BatchRow, FileRow, LinesDone
from .records import Changes, JobRow, Webhook

_ID_FORM = re.compile(r"[A-Za-z0-9_.~-]{1,200}")


def has_id_form(text: str) -> bool:
    """True if the text can be an id; no store is asked for any other."""
    return _ID_FORM.fullmatch(text) is not None


class Store(Protocol):
    """Store of kept jobs. `commit` is atomic and durable when it returns. Every method may raise StoreError."""

    def commit(self, changes: Changes) -> None:
        """Write all changes or none. Without changes find out whether the store is where it was."""

    def last_numbers(self) -> tuple[int, int]:
        """Return the highest numbers of a job and a segment, 0 if there are none; this process continues above them."""

    def begin_process(self) -> bool:
        """Note that a process uses the store from now on. Returns True if the previous process had ended properly.

        If it had not, each running job and line counts one more crash. None is marked as running then, and uploads that
        were cut short are deleted.
        """

    def end_process(self, *, has_crashed: bool = False) -> None:
        """Note that the process ends: properly, or because its engine died, which counts as a crash."""

    def unfinished(self) -> list[JobRow]:
        """Return the jobs that have not ended, oldest first."""

    def segments(self, first: int) -> Iterable[bytes]:
        """Yield the segments from this number on."""

    def find(self, seq_id: str) -> JobRow | None:
        """Find the job with this id."""

    def find_key(self, owner: str, idempotency_key: bytes) -> JobRow | None:
        """Find the owner's job with this key."""

    def page(self, owner: str, *, before: tuple[float, str] | None, limit: int, status: str | None) -> list[JobRow]:
        """Return the owner's ended jobs that were created before this time and id, newest first."""

    def delete_owner(self, owner: str) -> list[str]:
        """Delete all jobs of an owner. Returns their ids."""

    def due_targets(self, now: float) -> list[str]:
        """Return the targets of the messages that are due."""

    def due_webhooks(self, now: float, *, limit: int, target: str | None = None) -> list[Webhook]:
        """Return at most `limit` messages that are due, of one target or all."""

    def begin_webhook(self, webhook: Webhook, *, next_try: float) -> bool:
        """Count a try and set the time of the next.

        Returns False if another server counted it, or the message is gone.
        """

    def forget_webhook(self, seq_id: str) -> None:
        """Delete a message, so that it is not sent again."""

    def num_bytes_of(self, owner: str) -> int:
        """Return the approximate size of the owner's jobs."""

    def sweep(self, now: float, *, max_jobs: int) -> int:
        """Delete unused segments, at most `max_jobs` expired jobs, and expired or deleted files and batches as far as
        that is quick. Returns the number of jobs deleted.
        """

    def close(self) -> None:
        """Close the store."""


class BatchStore(Store, Protocol):
    """Store that keeps files and batches too."""

    def write_batches(self, changes: BatchChanges) -> None:
        """Write all changes or none."""

    def find_file(self, file_id: str) -> FileRow | None:
        """Find the file with this id, in any state."""

    def find_batch(self, batch_id: str) -> BatchRow | None:
        """Find the batch with this id."""

    def find_batch_key(self, owner: str, idempotency_key: bytes) -> BatchRow | None:
        """Find the owner's batch with this key."""

    def list_files(self, owner: str, page: Page, *, now: float, purpose: str | None = None) -> list[FileRow]:
        """Return the owner's ready, unexpired files, of one purpose if it is given."""

    def list_batches(self, owner: str, page: Page, *, now: float) -> list[BatchRow]:
        """Return the owner's unexpired batches."""

    def unfinished_batches(self) -> list[BatchRow]:
        """Return the batches that are not over, oldest first."""

    def num_unfinished_batches(self) -> int:
        """Count the batches that are not over."""

    def parts(self, file_id: str, *, after: int, limit: int) -> list[tuple[int, bytes]]:
        """Return at most `limit` parts of a file after this number, in order."""

    def lines_done(self, batch_id: str, output_file_id: str, error_file_id: str) -> LinesDone:
        """Return the answered lines of a batch, and the begun ones."""

    def num_file_bytes(self) -> int:
        """Return the total size of all files."""

    def num_parts(self, file_id: str) -> int:
        """Return the number of a file's parts."""

    def file_bytes(self, file_id: str) -> int:
        """Return the total size of a file's parts."""


class StoreError(Exception):
    """The store cannot be read or written: the disk is full or failing, or the server is gone."""


class UnreadableError(StoreError):
    """Damage of a row, or of the way to it, on disk; the rest of the store can be read."""
