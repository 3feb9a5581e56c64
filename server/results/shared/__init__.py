"""Results in PostgreSQL that several servers share: leases, take-over, and the way to the server that runs a job."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ....engine.errors import ConfigError
from ...extension import Extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class SharedSettings(ServerSettings):
    """Lease and address of this server, as the others on its database see them."""

    results_lease: float = setting(
        15.0, at_least=0.5, help="seconds without a sign of life after which other servers take a server's jobs over"
    )
    results_url: str = setting("", help="where other servers on the database reach this one, default http://HOST:PORT")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.has_shared_results and not self.results_url and self.host in ("0.0.0.0", "::"):
            raise ConfigError(
                f"--results postgresql://… with --host {self.host}: other servers must know where to reach this one; "
                "give --results-url http://ITS-NAME:PORT"
            )


EXTENSION = Extension(
    package=__name__,
    requires=("server/results/durable", "server/results/batches"),
    settings=SharedSettings,
    is_used=lambda settings: settings.has_shared_results,
    part="part:SharedPart",
    shared_batches="shared_batches:SharedBatches",
)
