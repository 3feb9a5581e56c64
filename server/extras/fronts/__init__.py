"""Fronts: the engine in a process of its own, sockets and text in others: `serve --api-server-count N`."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ....engine.errors import ConfigError
from ...extension import Extension
from ...server_settings import ServerSettings

# Settings that the engine's process does not get: the fronts' own.
FRONTS_OWN = (
    *("api_server_count", "results", "results_url", "api_key_file", "admin_key_file"),
    *("ssl_certfile", "ssl_keyfile", "uds", "request_log", "id_tag"),
)
# Settings that do not work with fronts yet, and why.
_REFUSED = {
    "replicas": "each replica would have its own: give --replicas, or --api-server-count",
    "embedding_model": "the second model runs beside a server of one process",
}


@dataclass(frozen=True, kw_only=True)
class FrontSettings(ServerSettings):
    """Number of fronts."""

    api_server_count: int | str = setting(
        "auto",
        at_least=0,
        at_most=1,
        words=("auto",),
        help="processes for HTTP and text before the engine's own; 0 = one process for all; auto is 0 so far",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, why in _REFUSED.items() if self.num_fronts else ():
            if getattr(self, name, None) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} does not work with --api-server-count: {why}")

    @property
    def num_fronts(self) -> int:
        """Number of fronts; 0 without an engine's process."""
        return self.api_server_count if isinstance(self.api_server_count, int) else 0


EXTENSION = Extension(
    package=__name__,
    requires=("server/results/durable",),
    settings=FrontSettings,
    is_used=lambda settings: settings.num_fronts > 0,
    engine="front_engine:FrontEngine",
    part="part:FrontPart",
)
