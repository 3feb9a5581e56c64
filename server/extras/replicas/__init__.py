"""Several whole servers behind one port: `serve --replicas N`. HAProxy is the data path; Ray only places processes."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ....engine.errors import ConfigError
from ...extension import Extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class ReplicaSettings(ServerSettings):
    """Number of servers behind the port, and the Ray cluster that runs them."""

    replicas: int | None = setting(
        None, at_least=1, help="whole servers behind one port, by HAProxy; each has a GPU, or its share of the cores"
    )
    ray_address: str | None = setting(
        None, help="Ray cluster that runs the replicas: auto, HOST:6379, or local, a new one; nothing = this machine"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.ray_address is not None and self.replicas is None:
            raise ConfigError("--ray-address says where replicas run: give --replicas N, too")
        if self.replicas is not None and (self.uds or self.ssl_certfile or self.root_path):
            raise ConfigError("--replicas takes no --uds, --ssl-certfile and --root-path: put a proxy before its port")


EXTENSION = Extension(
    package=__name__,
    settings=ReplicaSettings,
    is_used=lambda settings: settings.replicas is not None,
    serve="supervisor:serve_replicas",
)
