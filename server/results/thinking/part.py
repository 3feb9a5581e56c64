"""RunningJobs: jobs by their id while somebody holds them, also those of routes that keep no result."""

from typing import Any
from weakref import WeakValueDictionary

from ...extension import Part
from ...jobs.job import Job


class RunningJobs(Part):
    """Index of the jobs that the engine has taken."""

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        self._jobs: WeakValueDictionary[str, Job] = WeakValueDictionary()

    def job_created(self, job: Job) -> None:
        self._jobs[job.seq_id] = job

    def get(self, seq_id: str, *, owner: str) -> Job | None:
        """Return the owner's job."""
        job = self._jobs.get(seq_id)
        return job if job is not None and job.owner == owner else None
