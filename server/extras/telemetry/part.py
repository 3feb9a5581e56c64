"""TelemetryPart: brings requests and their jobs together in the log."""

from collections.abc import Sequence
from typing import Any

from starlette.middleware import Middleware

from ...extension import Part
from ...jobs.job import Job
from .request_log import RequestLog, WatchRequests


class TelemetryPart(Part):
    """Part with the log of requests."""

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        self.log = RequestLog()

    def middleware(self) -> Sequence[Middleware]:
        """Watch requests and their answers."""
        return [Middleware(WatchRequests, log=self.log)]

    def job_created(self, job: Job) -> None:
        """Note whose job it is."""
        self.log.add_job(job)
