"""Listeners that the settings ask for."""

from ... import package_version
from . import TelemetrySettings
from .request_ends import RequestListener
from .request_log import RequestLog


def listeners_of(settings: TelemetrySettings) -> list[RequestListener]:
    """Create the log and the span exporter, as configured. Raises ConfigError if a needed extra is missing."""
    listeners: list[RequestListener] = [RequestLog()] if settings.request_log else []
    if settings.otlp_traces_endpoint is not None:
        from .tracing import otlp_tracer  # imports OpenTelemetry

        tracer = otlp_tracer(settings.otlp_traces_endpoint, model_name=settings.model_name, version=package_version())
        listeners.append(tracer)
    return listeners
