"""PagePart: the viewers of one server's steps, and the last jobs that no store keeps."""

from typing import Any

from ...extension import Part
from ...jobs.job import Job
from .recent_jobs import RecentJobs
from .step_broadcast import StepBroadcast


class PagePart(Part):
    """Part that is made when the first viewer comes."""

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        self.steps = StepBroadcast()
        self.recent = RecentJobs(service.results.index)

    def job_created(self, job: Job) -> None:
        """Note the job, to explain it after its end."""
        self.recent.add(job)

    async def stop(self, *, has_crashed: bool = False) -> None:
        """Let all viewers go."""
        self.steps.end()
