"""Store: where kept jobs are on disk. One thread alone uses it."""

from collections.abc import Iterable
from typing import Protocol

from ...api.listing import Page
from .batch_rows import BatchChanges, BatchRow, FileRow, LinesDone
from .records import Changes, JobRow, Webhook


class Store(Protocol):
    """A transaction is on disk when `commit` returns, or nothing of it is. Every method may raise StoreError."""

    def commit(self, changes: Changes) -> None:
        """Write all of it or nothing."""

    def last_numbers(self) -> tuple[int, int]:
        """What this process writes gets larger numbers, of a job and of a segment; 0 if there is none yet."""

    def begin_process(self) -> bool:
        """Note that a process uses the store from now on. Returns whether the one before had ended properly.

        If it had not, each job and each line that was running counts one crash more. None of them is running now, and
        uploads that were cut short are deleted.
        """

    def end_process(self, *, has_crashed: bool = False) -> None:
        """Note that the process ends: properly, or because its engine died, which counts as a crash."""

    def unfinished(self) -> list[JobRow]:
        """Jobs that have not ended, in the order in which they came."""

    def segments(self, first: int) -> Iterable[bytes]:
        """Segments from this number on."""

    def find(self, seq_id: str) -> JobRow | None:
        """The job with this id."""

    def find_key(self, owner: str, idempotency_key: bytes) -> JobRow | None:
        """The job that came with this key."""

    def page(self, owner: str, *, before: tuple[float, str] | None, limit: int, status: str | None) -> list[JobRow]:
        """The owner's jobs that have ended, newest first, from those created before this time and id."""

    def delete_owner(self, owner: str) -> list[str]:
        """Delete all jobs of an owner. Returns their ids."""

    def due_webhooks(self, now: float, *, limit: int) -> list[Webhook]:
        """At most so many messages whose time has come."""

    def begin_webhook(self, webhook: Webhook, *, next_try: float) -> bool:
        """Count a try, and say when the next one is due. False if another server has counted it, or it is forgotten."""

    def forget_webhook(self, seq_id: str) -> None:
        """It is not sent again."""

    def num_bytes_of(self, owner: str) -> int:
        """About what the owner's jobs take."""

    def sweep(self, now: float, *, max_jobs: int) -> int:
        """Delete segments that are of no more use, at most so many expired jobs, and of files and batches that have
        expired or been deleted as much as is quickly done. Returns how many jobs these were.
        """

    def close(self) -> None:
        """Let go of the store."""


class BatchStore(Store, Protocol):
    """A Store that keeps files and batches too."""

    def write_batches(self, changes: BatchChanges) -> None:
        """Write all of it or nothing."""

    def find_file(self, file_id: str) -> FileRow | None:
        """The file with this id, whatever its state."""

    def find_batch(self, batch_id: str) -> BatchRow | None:
        """The batch with this id."""

    def find_batch_key(self, owner: str, idempotency_key: bytes) -> BatchRow | None:
        """The batch that came with this key."""

    def list_files(self, owner: str, page: Page, *, now: float, purpose: str | None = None) -> list[FileRow]:
        """The owner's files that are ready and have not expired."""

    def list_batches(self, owner: str, page: Page, *, now: float) -> list[BatchRow]:
        """The owner's batches that have not expired."""

    def unfinished_batches(self) -> list[BatchRow]:
        """Batches that are not over, in the order in which they came."""

    def num_unfinished_batches(self) -> int:
        """How many these are."""

    def parts(self, file_id: str, *, after: int, limit: int) -> list[tuple[int, bytes]]:
        """So many parts of a file behind this number, in order."""

    def lines_done(self, batch_id: str, output_file_id: str, error_file_id: str) -> LinesDone:
        """The lines of a batch that are answered, and those that had been begun."""

    def num_file_bytes(self) -> int:
        """The size of all files together."""

    def num_parts(self, file_id: str) -> int:
        """How many parts a file has."""

    def file_bytes(self, file_id: str) -> int:
        """The size of a file's parts together."""


class StoreError(Exception):
    """The store cannot be read or written: the disk is full or failing, or the server is gone."""
