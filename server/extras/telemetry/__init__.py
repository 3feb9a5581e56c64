"""What operators are told of each request: a line of the log, a span of a trace."""

from ...extension import Extension
from .settings import TelemetrySettings

EXTENSION = Extension(
    package=__name__,
    settings=TelemetrySettings,
    is_used=lambda settings: settings.request_log or settings.otlp_traces_endpoint is not None,
    part="part:TelemetryPart",
)
