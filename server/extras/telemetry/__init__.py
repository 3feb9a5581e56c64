"""Telemetry for operators: a log line per request."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...extension import Extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings(ServerSettings):
    """The log of requests."""

    request_log: bool = setting(True, help="log one line per request when it ends, without its texts")


EXTENSION = Extension(
    package=__name__,
    settings=TelemetrySettings,
    is_used=lambda settings: settings.request_log,
    part="part:TelemetryPart",
)
