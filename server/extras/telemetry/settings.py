"""Settings of the request log and of traces."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class TelemetrySettings(ServerSettings):
    """The log of requests, and where spans are sent."""

    request_log: bool = setting(True, help="log one line per request when it ends, without its texts")
    otlp_traces_endpoint: str | None = setting(
        None, help="where a span per request is sent by OTLP over HTTP, as http://localhost:4318/v1/traces"
    )
