"""The result store: jobs that can be found again by their seq_id, by their owner only, for a while.

Bounded by number and bytes: the oldest finished results go first, running ones never. The clock is an argument.
"""

import contextlib
import heapq
import hmac
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from itertools import islice

from ...engine.errors import QueueFullError
from ..http.errors import IdempotencyKeyReusedError, QuotaExceededError, ResultNotFoundError
from .idempotency import IdempotencyKey, KeyLocks
from .job import Job

ID_PREFIX = "resp_"  # what /v1/responses writes before an id
_NUM_ID_CHARS = 32
_FEW_EXPIRIES = 64  # too few to clean up
_FULL_RETRY_S = 60.0  # of an owner whose results fill the quota


def seq_id_of(text: str) -> str:
    """The id in either spelling."""
    return text.removeprefix(ID_PREFIX) if len(text) > _NUM_ID_CHARS else text


def newness(job: Job) -> tuple[float, str]:
    """Orders jobs by when they came."""
    return job.created, job.seq_id


@dataclass(frozen=True, kw_only=True)
class ResultLimits:
    """`ttl` in seconds after the end of a job; `max_unfinished` jobs of one owner that have not ended, and
    `max_owner_bytes` of all that are kept for one.
    """

    ttl: float
    max_results: int
    max_bytes: int
    max_unfinished: int | None = None
    max_owner_bytes: int | None = None


class ResultStore:
    """`_finished` holds the ids of `_jobs` that have ended, in that order."""

    is_shared = False  # with other servers

    def __init__(self, limits: ResultLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._keys: dict[tuple[str, bytes], str] = {}  # owner and key → the job's id
        self._key_locks = KeyLocks()
        self._num_unfinished: Counter[str] = Counter()  # of each owner
        self._finished: dict[str, None] = {}
        self._expiries: list[tuple[float, str]] = []  # a heap of (when, seq_id), also of jobs that are gone
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Keep a job from now on. Raises QueueFullError (QuotaExceededError) when nothing may go to make room."""
        self._drop_expired()
        most = self.limits.max_unfinished
        # More than the limit where jobs were taken up again: these are not refused.
        if not job.finished and most is not None and self._num_unfinished[job.owner] >= most:
            raise QuotaExceededError(
                f"{most} results of yours are unfinished, which is --max-unfinished-per-key; "
                "wait for one to end, or cancel one",
                retry_after_s=1.0,
            )
        if len(self._jobs) >= self.limits.max_results:
            if not self._finished:
                raise QueueFullError(
                    f"{len(self._jobs)} unfinished results are kept, which is --max-results", retry_after_s=1.0
                )
            self._drop_oldest()
        self._insert(job)

    async def check_quota(self, owner: str) -> None:
        """Raise QuotaExceededError where the owner's results take all the bytes that one owner may have."""
        most = self.limits.max_owner_bytes
        if most is not None and (num_bytes := await self.num_bytes_of(owner)) >= most:
            raise QuotaExceededError(
                f"your results take {num_bytes} bytes, and --max-result-bytes-per-key is {most}; delete some "
                "(DELETE /result/ID, DELETE /results), or wait until they expire",
                retry_after_s=_FULL_RETRY_S,
            )

    async def num_bytes_of(self, owner: str) -> int:
        """What all of the owner's results take, wherever they are kept."""
        self._drop_expired()
        return sum(job.num_bytes for job in self._jobs.values() if job.owner == owner)

    def _insert(self, job: Job) -> None:
        self._jobs[job.seq_id] = job
        if job.idempotency_key is not None:
            self._keys[job.owner, job.idempotency_key.digest] = job.seq_id
        self.num_bytes += job.num_bytes
        job.on_grow = self._grew
        self._num_unfinished[job.owner] += 1
        if job.finished:
            self._end(job)

    def _end(self, job: Job) -> None:
        self._num_unfinished[job.owner] -= 1
        self._finished[job.seq_id] = None
        ttl = self.limits.ttl if job.ttl_s is None else min(self.limits.ttl, job.ttl_s)
        heapq.heappush(self._expiries, (self._clock() + ttl, job.seq_id))

    def get(self, seq_id: str, *, owner: str) -> Job:
        """The owner's job. Raises ResultNotFoundError, which never tells why."""
        self._drop_expired()
        job = self._jobs.get(seq_id)
        if job is None or not hmac.compare_digest(job.owner, owner):
            raise ResultNotFoundError
        return job

    @contextlib.asynccontextmanager
    async def once(self, owner: str, key: IdempotencyKey | None) -> AsyncIterator[Job | None]:
        """Alone with this key: the owner's job that it has made, None if it has made none yet. What is added within is
        its job. Raises IdempotencyKeyReusedError.
        """
        if key is None:
            yield None
            return
        async with self._key_locks.hold(owner, key):
            job = await self.find_key(owner, key)
            if job is not None and job.idempotency_key != key:
                raise IdempotencyKeyReusedError
            yield job

    async def find_key(self, owner: str, key: IdempotencyKey) -> Job | None:
        """The owner's job that came with this key, whatever its body was."""
        self._drop_expired()
        seq_id = self._keys.get((owner, key.digest))
        return None if seq_id is None else self._jobs[seq_id]

    async def find(self, seq_id: str, *, owner: str) -> Job:
        """As `get`, wherever the job is kept."""
        return self.get(seq_id, owner=owner)

    async def page(self, owner: str, *, after: Job | None, limit: int, status: str | None) -> list[Job]:
        """At most so many of the owner's jobs, newest first, those that came before this one."""
        self._drop_expired()
        jobs = sorted((job for job in self._jobs.values() if job.owner == owner), key=newness, reverse=True)
        older = (job for job in jobs if after is None or newness(job) < newness(after))
        return list(islice((job for job in older if status is None or job.status == status), limit))

    async def delete_all(self, owner: str) -> set[str]:
        """Forget all of the owner's jobs, wherever they are kept. Returns their ids."""
        jobs = [job for job in self._jobs.values() if job.owner == owner]
        for job in jobs:
            self.forget(job)
        return {job.seq_id for job in jobs}

    async def delete(self, job: Job) -> None:
        """As `forget`, wherever the job is kept."""
        self.forget(job)

    def forget(self, job: Job) -> None:
        """Keep the job no longer; its readers can read on."""
        if self._jobs.pop(job.seq_id, None) is not None:
            if job.seq_id in self._finished:
                del self._finished[job.seq_id]
            else:
                self._num_unfinished[job.owner] -= 1
            if job.idempotency_key is not None:
                del self._keys[job.owner, job.idempotency_key.digest]
            self.num_bytes -= job.num_bytes
            job.on_grow = None

    def unfinished(self, *, owner: str | None = None) -> list[Job]:
        """Jobs that have not ended, of one owner or all."""
        return [job for job in self._jobs.values() if not job.finished and owner in (None, job.owner)]

    def check(self) -> None:
        """Assert the store's invariants."""
        assert self.num_bytes == sum(job.num_bytes for job in self._jobs.values())
        unfinished = Counter(job.owner for job in self._jobs.values() if not job.finished)
        assert +self._num_unfinished == unfinished
        assert set(self._finished) == {seq_id for seq_id, job in self._jobs.items() if job.finished}
        assert {seq_id for _, seq_id in self._expiries} >= set(self._finished)
        keyed = {job.seq_id for job in self._jobs.values() if job.idempotency_key is not None}
        assert set(self._keys.values()) == keyed

    def _grew(self, job: Job, num_bytes: int) -> None:
        self.num_bytes += num_bytes
        if job.finished and job.seq_id not in self._finished:
            self._end(job)
        # The newest result stays whatever its size: its owner has had no chance to read it.
        while self.num_bytes > self.limits.max_bytes and len(self._finished) > 1:
            self._drop_oldest()

    def _drop_expired(self) -> None:
        now = self._clock()
        while self._expiries and self._expiries[0][0] <= now:
            _, seq_id = heapq.heappop(self._expiries)
            if seq_id in self._finished:
                self.forget(self._jobs[seq_id])
        # Under load most go to make room long before they expire: a thousand a second were 500 MB within an hour.
        if len(self._expiries) > 2 * len(self._finished) + _FEW_EXPIRIES:
            self._expiries = [expiry for expiry in self._expiries if expiry[1] in self._finished]
            heapq.heapify(self._expiries)

    def _drop_oldest(self) -> None:
        self.forget(self._jobs[next(iter(self._finished))])
