"""Store: where kept jobs are on disk. One thread alone uses it."""

from collections.abc import Iterable
from typing import Protocol

from .records import Changes, JobRow


class Store(Protocol):
    """A transaction is on disk when `commit` returns, or nothing of it is. Every method may raise StoreError."""

    def commit(self, changes: Changes) -> None:
        """Write all of it or nothing."""

    def last_numbers(self) -> tuple[int, int]:
        """What this process writes gets larger numbers, of a job and of a segment; 0 if there is none yet."""

    def begin_process(self) -> bool:
        """Note that a process uses the store from now on. Returns whether the one before had ended properly.

        If it had not, each job that was running counts one crash more. None of them is running now.
        """

    def end_process(self) -> None:
        """Note that the process ends properly."""

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

    def sweep(self, now: float, *, max_jobs: int) -> int:
        """Delete segments that are of no more use and at most so many expired jobs. Returns how many these were."""

    def close(self) -> None:
        """Let go of the store."""


class StoreError(Exception):
    """The store cannot be read or written: the disk is full or failing, or the server is gone."""
