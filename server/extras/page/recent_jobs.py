"""RecentJobs: the last jobs that no store keeps, such as answers in chats, without their texts.

So a chat's answer can be explained after its end. The result store has the kept jobs.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from ....engine.core.outputs import RequestMetrics
from ...jobs.job import Job, JobObserver
from ...jobs.job_index import JobIndex

MAX_JOBS = 256  # about 10 KB each, with the longest histories


@dataclass(frozen=True, slots=True)
class EndedOutput:
    """Metrics of one output of a job."""

    index: int
    metrics: RequestMetrics | None
    finish_reason: str | None


@dataclass(frozen=True, slots=True)
class EndedJob:
    """Facts about a job that outlive the job."""

    seq_id: str
    owner: str
    status: str
    outputs: Sequence[EndedOutput]
    finished: bool = True

    @classmethod
    def of(cls, job: Job) -> Self:
        """Copy the facts."""
        outputs = [EndedOutput(output.index, output.metrics, output.finish_reason) for output in job.outputs]
        return cls(job.seq_id, job.owner, job.status, outputs)


class RecentJobs(JobObserver):
    """The newest MAX_JOBS jobs outside this index."""

    def __init__(self, index: JobIndex) -> None:
        self._index = index
        self._jobs: OrderedDict[str, Job | EndedJob] = OrderedDict()

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Job) -> None:
        """Note a new job, and forget the oldest one beyond the limit."""
        self._jobs[job.seq_id] = job
        job.observe(self)
        if len(self._jobs) > MAX_JOBS:
            self._jobs.popitem(last=False)

    def get(self, seq_id: str, *, owner: str) -> Job | EndedJob | None:
        """Return the owner's job, None if it is not here."""
        job = self._jobs.get(seq_id)
        return job if job is not None and job.owner == owner else None

    def job_grew(self, job: Job, num_bytes: int) -> None:
        """Forget a job that is kept: whoever deletes its result deletes its explanation, too."""
        if self._index.get(job.seq_id, owner=job.owner) is not None:
            self._jobs.pop(job.seq_id, None)
            job.unobserve(self)

    def job_ended(self, job: Job) -> None:
        """Keep the metrics in place of the texts."""
        if job.seq_id in self._jobs:
            self._jobs[job.seq_id] = EndedJob.of(job)
