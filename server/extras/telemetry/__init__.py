"""Telemetry for operators: a log line and a trace span per request."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...extension import Extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings(ServerSettings):
    """The log of requests, and where spans are sent."""

    request_log: bool = setting(True, help="log one line per request when it ends, without its texts")
    otlp_traces_endpoint: str | None = setting(
        None, help="where a span per request is sent by OTLP over HTTP, as http://localhost:4318/v1/traces"
    )


EXTENSION = Extension(
    package=__name__,
    settings=TelemetrySettings,
    is_used=lambda settings: settings.request_log or settings.otlp_traces_endpoint is not None,
    part="part:TelemetryPart",
)
