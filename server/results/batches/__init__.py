"""Uploaded files, and batches of requests that run in the background."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...extension import Extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class BatchSettings(ServerSettings):
    """Limits of files, and of batches that run at once."""

    max_file_bytes: int = setting(64 * 2**20, at_least=1, help="longest file for batches; takes KiB, MiB, GiB")
    max_total_file_bytes: int = setting(
        512 * 2**20, at_least=1, help="all files for batches together, in memory or on disk; takes KiB, MiB, GiB"
    )
    file_ttl: float = setting(30 * 86_400.0, at_least=0, help="seconds that files and batches are kept")
    max_batch_lines: int = setting(50_000, at_least=1, help="requests in one batch")
    max_batch_requests: int = setting(16, at_least=1, help="requests of batches that are in the engine at once")


EXTENSION = Extension(
    package=__name__,
    requires=("server/results/durable",),
    settings=BatchSettings,
    paths=("/v1/files", "/v1/batches"),
    router="routes:router",
    part="part:BatchesPart",
    starts=lambda settings: settings.has_durable_results,  # there may be batches to go on with
)
