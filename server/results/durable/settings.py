"""Settings of results that outlive the process."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ....engine.errors import ConfigError
from ...extension import has_extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class DurableSettings(ServerSettings):
    """Place of kept results."""

    results: str = setting(
        "memory",
        repr=False,
        help="where results are kept: memory, or a file, from which they and unfinished jobs survive a crash, or "
        "postgresql://…, which servers share",
    )
    results_sync: str = setting(
        "full",
        choices=("full", "normal"),
        help="full: delivered events survive a power cut; normal: only a crash of the process, with cheaper commits",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.has_shared_results and not has_extension("shared"):
            raise ConfigError("--results postgresql://… needs server/results/shared, which this installation lacks")

    @property
    def has_durable_results(self) -> bool:
        """True if results outlive the process."""
        return self.results != "memory"

    @property
    def has_shared_results(self) -> bool:
        """True if results are kept in a database that several servers share."""
        return self.results.startswith(("postgresql://", "postgres://"))
