"""Port to results outside memory; the base class keeps none there."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...engine.core.outputs import OutputDelta
from .idempotency import IdempotencyKey, KeyLocks
from .job import Job, JobObserver
from .saved_request import SavedRequest

if TYPE_CHECKING:
    from ...engine.serving.submitted_request import SubmittedRequest

Sink = Callable[[OutputDelta], None]


class ResultBackend(JobObserver):
    """Keeper of jobs beside a JobIndex. Every method may raise NotReadyError (StoreUnavailableError)."""

    is_shared = False  # with other servers, which may be asked for a job

    def __init__(self) -> None:
        self.key_locks = KeyLocks()
        self.failure: Exception | None = None  # reason why results cannot be written now

    def stats(self) -> dict[str, object]:
        """Return figures of what is kept, for /stats and /metrics."""
        return {}

    async def open(self) -> None:
        """Open the store. Raises ConfigError."""

    async def close(self, *, has_crashed: bool = False) -> None:
        """Write pending events and let go. `has_crashed`: the engine died, which counts as a crash of running jobs."""

    def sink(self, job: Job) -> Sink:
        """Return where the engine's deltas of a job go that will be accepted."""
        return job.sink

    async def accept(
        self, job: Job, handle: "SubmittedRequest", kept: SavedRequest, *, user: str, fingerprint: str
    ) -> None:
        """Return when the job is kept."""

    async def amend(self, job: Job, **fields: Any) -> None:
        """Return when changed parameters of a running job are kept."""

    async def request_of(self, job: Job) -> dict[str, Any] | None:
        """Return what is kept of the job's request; None if memory alone has the job."""
        return None

    async def find(self, seq_id: str, *, owner: str) -> Job | None:
        """Return the owner's job that is not in memory."""
        return None

    async def find_key(self, owner: str, key: IdempotencyKey) -> Job | None:
        """Return the owner's job that came with this key and is not in memory."""
        return None

    async def page(self, owner: str, *, after: Job | None, limit: int, status: str | None) -> list[Job]:
        """Return the owner's kept jobs that have ended, newest first."""
        return []

    async def num_bytes_of(self, owner: str) -> int | None:
        """Return about the bytes of the owner's jobs; None if they take memory alone."""
        return None

    def forget(self, job: Job) -> None:
        """Forget the job in memory; it stays where it is kept."""

    async def delete(self, job: Job) -> None:
        """Delete the job where it is kept."""

    async def delete_all(self, owner: str) -> set[str]:
        """Delete the owner's jobs where they are kept. Returns their ids."""
        return set()
