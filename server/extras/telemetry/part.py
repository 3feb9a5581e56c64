"""TelemetryPart: brings requests and their jobs together, and tells the log and the tracer when they have ended."""

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.middleware import Middleware

from ...extension import Part
from ...jobs.job import Job
from . import TelemetrySettings
from .listeners import listeners_of
from .request_ends import RequestEnds, WatchRequests


class TelemetryPart(Part):
    """Part with the listeners that the settings ask for."""

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        self.requests = RequestEnds(listeners_of(service.settings.section(TelemetrySettings)))

    def middleware(self) -> Sequence[Middleware]:
        """Watch requests and their answers."""
        return [Middleware(WatchRequests, ends=self.requests)]

    def job_created(self, job: Job) -> None:
        """Note whose job it is."""
        self.requests.add_job(job)

    async def close(self) -> None:
        """Send the remaining spans."""
        await asyncio.to_thread(self.requests.close)
