"""Which listeners the settings ask for."""

from ... import package_version
from .request_ends import RequestListener
from .request_log import RequestLog
from .settings import TelemetrySettings


def listeners_of(settings: TelemetrySettings) -> list[RequestListener]:
    """The log, and what sends spans. Raises ConfigError where that needs an extra."""
    listeners: list[RequestListener] = [RequestLog()] if settings.request_log else []
    if settings.otlp_traces_endpoint is not None:
        from .tracing import otlp_tracer  # imports OpenTelemetry

        tracer = otlp_tracer(settings.otlp_traces_endpoint, model_name=settings.model_name, version=package_version())
        listeners.append(tracer)
    return listeners
