"""ResultStore: kept jobs, wherever they are: in the index that memory holds, or with the backend."""

import contextlib
from collections.abc import AsyncIterator, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Self

from ...engine.core.sampling_params import SamplingParams
from ..http.errors import IdempotencyKeyReusedError, QuotaExceededError, ResultNotFoundError
from .idempotency import IdempotencyKey
from .job import Job, new_id
from .job_index import JobIndex, ResultLimits, newness
from .result_backend import ResultBackend
from .result_size import bounded

ID_PREFIX = "resp_"  # what /v1/responses writes before an id
_NUM_ID_CHARS = 32
_FULL_RETRY_S = 60.0  # Retry-After of an owner whose results fill the quota


def seq_id_of(text: str) -> str:
    """Return the id in either spelling."""
    return text.removeprefix(ID_PREFIX) if len(text) > _NUM_ID_CHARS else text


class ResultStore:
    """One index and one backend. Methods that ask the backend raise NotReadyError (StoreUnavailableError)."""

    def __init__(self, index: JobIndex, backend: ResultBackend, *, id_tag: str = "") -> None:
        self.index = index
        self.backend = backend
        self.limits = index.limits
        self._id_tag = id_tag
        self.add = index.add
        self.unfinished = index.unfinished
        self.check = index.check
        self.open, self.stats = backend.open, backend.stats
        self.close = backend.close
        self.sink = backend.sink
        self.accept, self.amend, self.request_of = backend.accept, backend.amend, backend.request_of

    @classmethod
    def of(cls, settings: Any, parts: Iterable[Any]) -> Self:
        """Make the store of ServerSettings; the first Part that keeps results elsewhere is the backend."""
        limits = ResultLimits(
            ttl=settings.result_ttl,
            max_results=settings.max_results,
            max_bytes=settings.max_result_bytes,
            max_unfinished=settings.max_unfinished_per_key,
            max_owner_bytes=settings.max_result_bytes_per_key,
        )
        index = JobIndex(limits)
        backends = (part.result_backend(index) for part in parts)
        backend = next((backend for backend in backends if backend is not None), ResultBackend())
        return cls(index, backend, id_tag=settings.id_tag)

    def new_job(self, **fields: Any) -> Job:
        """Make a job under a new, unguessable id; it is not kept yet."""
        return Job(new_id("", self._id_tag), **fields)

    def bounded(self, params: SamplingParams) -> SamplingParams:
        """Cut a default of max_tokens to what a result may hold. Raises InvalidRequestError if more is asked for."""
        return bounded(params, max_bytes=self.limits.max_bytes)

    def __len__(self) -> int:
        return len(self.index)

    @property
    def num_bytes(self) -> int:
        """Memory of the jobs in the index."""
        return self.index.num_bytes

    def get(self, seq_id: str, *, owner: str) -> Job:
        """Return the owner's job in memory. Raises ResultNotFoundError, which never tells why."""
        if (job := self.index.get(seq_id, owner=owner)) is None:
            raise ResultNotFoundError
        return job

    async def find(self, seq_id: str, *, owner: str) -> Job:
        """Return the owner's job. Raises ResultNotFoundError, which never tells why."""
        job = self.index.get(seq_id, owner=owner) or await self.backend.find(seq_id, owner=owner)
        if job is None:
            raise ResultNotFoundError
        return job

    async def find_key(self, owner: str, key: IdempotencyKey) -> Job | None:
        """Return the owner's job that came with this key, whatever its body was."""
        return self.index.by_key(owner, key) or await self.backend.find_key(owner, key)

    def idempotent(self, owner: str, key: IdempotencyKey | None) -> AbstractAsyncContextManager[Job | None]:
        """Hold the lock of an idempotency key. Yields the job that came with it, or None; a job that is added inside
        the block gets the key. Raises IdempotencyKeyReusedError.
        """
        return contextlib.nullcontext() if key is None else self._idempotent(owner, key)

    @contextlib.asynccontextmanager
    async def _idempotent(self, owner: str, key: IdempotencyKey) -> AsyncIterator[Job | None]:
        async with self.backend.key_locks.hold(owner, key):
            job = await self.find_key(owner, key)
            if job is not None and job.idempotency_key != key:
                raise IdempotencyKeyReusedError
            yield job

    async def check_quota(self, owner: str) -> None:
        """Raise QuotaExceededError where the owner's results may take all the bytes that one owner may have.

        Those that run count as what they may become. A job that is added without an `await` in between has its room.
        """
        if (most := self.limits.max_owner_bytes) is None:
            return
        num_bytes = await self.num_bytes_of(owner)
        num_bytes += sum(max(0, job.num_bytes_due - job.num_bytes) for job in self.unfinished(owner=owner))
        if num_bytes >= most:
            raise QuotaExceededError(
                f"your results take {num_bytes} bytes or will, and --max-result-bytes-per-key is {most}; delete some "
                "(DELETE /result/ID, DELETE /results), or wait until they expire",
                retry_after_s=_FULL_RETRY_S,
            )

    async def num_bytes_of(self, owner: str) -> int:
        """Return the bytes of all results of the owner, where they are kept."""
        num_bytes = await self.backend.num_bytes_of(owner)
        return self.index.num_bytes_of(owner) if num_bytes is None else num_bytes

    async def page(self, owner: str, *, after: Job | None, limit: int, status: str | None) -> list[Job]:
        """Return at most `limit` of the owner's jobs, newest first, older than `after`."""
        here = self.index.page(owner, after=after, limit=limit, status=status)
        kept = await self.backend.page(owner, after=after, limit=limit, status=status)
        jobs = {job.seq_id: job for job in (*kept, *here)}
        return sorted(jobs.values(), key=newness, reverse=True)[:limit]

    def forget(self, job: Job) -> None:
        """Keep the job in memory no longer; its readers can read on."""
        self.index.forget(job)
        self.backend.forget(job)

    async def delete(self, job: Job) -> None:
        """Forget the job, and delete it where it is kept."""
        self.forget(job)
        await self.backend.delete(job)

    async def delete_all(self, owner: str) -> set[str]:
        """Delete all of the owner's jobs. Returns their ids."""
        jobs = list(self.index.of(owner))
        for job in jobs:
            self.forget(job)
        return {job.seq_id for job in jobs} | await self.backend.delete_all(owner)
