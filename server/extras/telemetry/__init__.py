"""Telemetry for operators: a log line and a trace span per request."""

from ...extension import Extension
from .settings import TelemetrySettings

EXTENSION = Extension(
    package=__name__,
    settings=TelemetrySettings,
    is_used=lambda settings: settings.request_log or settings.otlp_traces_endpoint is not None,
    part="part:TelemetryPart",
)
