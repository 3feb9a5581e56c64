"""JobIndex: jobs in memory that can be found again by their seq_id, by their owner only, for a while.

Bounded by number and bytes: the oldest finished results go first, running ones never. The clock is an argument.
"""

import heapq
import hmac
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

from ...engine.errors import QueueFullError
from ..http.errors import QuotaExceededError
from .idempotency import IdempotencyKey
from .job import Job, JobObserver

_FEW_EXPIRIES = 64  # too few to clean up


def newness(job: Job) -> tuple[float, str]:
    """Return the sort key of arrival."""
    return job.created, job.seq_id


@dataclass(frozen=True, kw_only=True)
class ResultLimits:
    """Limits of kept results. `ttl`: seconds after a job's end. `max_unfinished`: unfinished jobs of one owner.
    `max_owner_bytes`: bytes of all jobs of one owner.
    """

    ttl: float
    max_results: int
    max_bytes: int
    max_unfinished: int | None = None
    max_owner_bytes: int | None = None


class JobIndex(JobObserver):
    """Jobs by id, owner and idempotency key. `_finished` holds the ids of `_jobs` that have ended, in that order."""

    def __init__(self, limits: ResultLimits, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self._clock = clock
        self._jobs: dict[str, Job] = {}
        self._keys: dict[tuple[str, bytes], str] = {}  # owner and key → the job's id
        self._num_unfinished: Counter[str] = Counter()  # by owner
        self._finished: dict[str, None] = {}
        self._expiries: list[tuple[float, str]] = []  # a heap of (when, seq_id), also of jobs that are gone
        self.num_bytes = 0

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Keep a job from now on. Raises QueueFullError (QuotaExceededError) when nothing may go to make room."""
        self._drop_expired()
        most = self.limits.max_unfinished
        # Jobs that were taken up again are not refused, so there may be more than the limit.
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
        self.insert(job)

    def insert(self, job: Job) -> None:
        """Keep a job whatever the limits are."""
        self._jobs[job.seq_id] = job
        if job.idempotency_key is not None:
            self._keys[job.owner, job.idempotency_key.digest] = job.seq_id
        self.num_bytes += job.num_bytes
        job.observe(self)
        self._num_unfinished[job.owner] += 1
        if job.finished:
            self._end(job)

    def get(self, seq_id: str, *, owner: str) -> Job | None:
        """Return the owner's job, if it is here."""
        self._drop_expired()
        job = self._jobs.get(seq_id)
        return job if job is not None and hmac.compare_digest(job.owner, owner) else None

    def by_key(self, owner: str, key: IdempotencyKey) -> Job | None:
        """Return the owner's job that came with this key, whatever its body was."""
        self._drop_expired()
        seq_id = self._keys.get((owner, key.digest))
        return None if seq_id is None else self._jobs[seq_id]

    def page(self, owner: str, *, after: Job | None, limit: int, status: str | None) -> list[Job]:
        """Return at most `limit` of the owner's jobs, newest first, older than `after`."""
        self._drop_expired()
        older = (
            job
            for job in sorted(self.of(owner), key=newness, reverse=True)
            if (after is None or newness(job) < newness(after)) and (status is None or job.status == status)
        )
        return list(islice(older, limit))

    def num_bytes_of(self, owner: str) -> int:
        """Count the memory of the owner's jobs."""
        self._drop_expired()
        return sum(job.num_bytes for job in self.of(owner))

    def of(self, owner: str) -> Iterator[Job]:
        """Iterate over the owner's jobs."""
        return (job for job in self._jobs.values() if job.owner == owner)

    def unfinished(self, *, owner: str | None = None) -> list[Job]:
        """Return jobs that have not ended, of one owner or all."""
        return [job for job in self._jobs.values() if not job.finished and owner in (None, job.owner)]

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
            job.unobserve(self)

    def job_grew(self, job: Job, num_bytes: int) -> None:
        """Count the bytes, and make room for them."""
        self.num_bytes += num_bytes
        if job.finished and job.seq_id not in self._finished:
            self._end(job)
        # The newest result stays whatever its size: its owner has had no chance to read it.
        while self.num_bytes > self.limits.max_bytes and len(self._finished) > 1:
            self._drop_oldest()

    def check(self) -> None:
        """Assert the invariants."""
        assert self.num_bytes == sum(job.num_bytes for job in self._jobs.values())
        unfinished = Counter(job.owner for job in self._jobs.values() if not job.finished)
        assert +self._num_unfinished == unfinished
        assert set(self._finished) == {seq_id for seq_id, job in self._jobs.items() if job.finished}
        assert {seq_id for _, seq_id in self._expiries} >= set(self._finished)
        keyed = {job.seq_id for job in self._jobs.values() if job.idempotency_key is not None}
        assert set(self._keys.values()) == keyed

    def _end(self, job: Job) -> None:
        self._num_unfinished[job.owner] -= 1
        self._finished[job.seq_id] = None
        ttl = self.limits.ttl if job.ttl_s is None else min(self.limits.ttl, job.ttl_s)
        heapq.heappush(self._expiries, (self._clock() + ttl, job.seq_id))

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
