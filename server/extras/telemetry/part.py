"""TelemetryPart: brings requests and their jobs together, and tells the log and the tracer when they have ended."""

import asyncio
from collections.abc import Sequence
from typing import Any

from starlette.middleware import Middleware

from ... import package_version
from ...extension import Part
from ...jobs.job import Job
from . import TelemetrySettings
from .request_ends import RequestEnds, RequestListener, WatchRequests
from .request_log import RequestLog


def listeners_of(settings: TelemetrySettings) -> list[RequestListener]:
    """Create the log and the span exporter, as configured. Raises ConfigError if a needed extra is missing."""
    listeners: list[RequestListener] = [RequestLog()] if settings.request_log else []
    if settings.otlp_traces_endpoint is not None:
        from .tracing import otlp_tracer  # imports OpenTelemetry

        tracer = otlp_tracer(settings.otlp_traces_endpoint, model_name=settings.model_name, version=package_version())
        listeners.append(tracer)
    return listeners


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
