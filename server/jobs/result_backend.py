"""ResultBackend: where results are kept beside memory; MemoryBackend keeps them nowhere else."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from ...engine.core.outputs import OutputDelta
from .idempotency import IdempotencyKey, KeyLocks
from .job import Job
from .kept_request import KeptRequest

if TYPE_CHECKING:
    from ...engine.serving.async_engine import Handle

Sink = Callable[[OutputDelta], None]


class ResultBackend(Protocol):
    """Keeper of jobs beside a JobIndex. Every method may raise NotReadyError (StoreUnavailableError)."""

    key_locks: KeyLocks
    is_shared: bool  # with other servers, which may be asked for a job

    @property
    def failure(self) -> Exception | None:
        """The reason why results cannot be written now."""

    async def open(self) -> None:
        """Open the store. Raises ConfigError."""

    async def close(self, *, has_crashed: bool = False) -> None:
        """Write what has come and let go. `has_crashed`: the engine died, which counts as a crash of running jobs."""

    def sink(self, job: Job, *, webhook: str | None) -> Sink:
        """Return where the engine's deltas of a job go that will be accepted."""

    async def accept(self, job: Job, handle: "Handle", kept: KeptRequest, *, user: str, fingerprint: str) -> None:
        """Return when the job is kept."""

    async def find(self, seq_id: str, *, owner: str) -> Job | None:
        """Return the owner's job that is not in memory."""

    async def find_key(self, owner: str, key: IdempotencyKey) -> Job | None:
        """Return the owner's job that came with this key and is not in memory."""

    async def page(self, owner: str, *, after: Job | None, limit: int, status: str | None) -> list[Job]:
        """Return the owner's kept jobs that have ended, newest first."""

    async def num_bytes_of(self, owner: str) -> int | None:
        """Return about the bytes of the owner's jobs; None if they take memory alone."""

    def forget(self, job: Job) -> None:
        """Forget the job in memory; it stays where it is kept."""

    async def delete(self, job: Job) -> None:
        """Delete the job where it is kept."""

    async def delete_all(self, owner: str) -> set[str]:
        """Delete the owner's jobs where they are kept. Returns their ids."""


class MemoryBackend:
    """ResultBackend of a server that keeps results in memory alone."""

    failure = None
    is_shared = False

    def __init__(self) -> None:
        self.key_locks = KeyLocks()

    async def open(self) -> None:
        """Do nothing."""

    async def close(self, *, has_crashed: bool = False) -> None:
        """Do nothing."""

    def sink(self, job: Job, *, webhook: str | None) -> Sink:
        """Return the job's own sink."""
        return job.sink

    async def accept(self, job: Job, handle: "Handle", kept: KeptRequest, *, user: str, fingerprint: str) -> None:
        """Do nothing."""

    async def find(self, seq_id: str, *, owner: str) -> Job | None:
        """Find none."""
        return None

    async def find_key(self, owner: str, key: IdempotencyKey) -> Job | None:
        """Find none."""
        return None

    async def page(self, owner: str, *, after: Job | None, limit: int, status: str | None) -> list[Job]:
        """Find none."""
        return []

    async def num_bytes_of(self, owner: str) -> int | None:
        """Return None."""
        return None

    def forget(self, job: Job) -> None:
        """Do nothing."""

    async def delete(self, job: Job) -> None:
        """Do nothing."""

    async def delete_all(self, owner: str) -> set[str]:
        """Delete none."""
        return set()
