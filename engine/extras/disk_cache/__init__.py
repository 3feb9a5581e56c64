"""Prefix cache on disk: blocks and recurrent states that outlive the process."""

from dataclasses import dataclass

from ...config.engine_settings import EngineSettings
from ...config.setting import setting
from ...errors import ConfigError
from ...extension import EngineExtension


@dataclass(frozen=True, kw_only=True)
class DiskCacheSettings(EngineSettings):
    """Settings of the prefix cache on disk."""

    prefix_cache_dir: str | None = setting(
        None, repr=False, help="folder of blocks that outlive the process, so that a known prompt need not be computed"
    )
    prefix_cache_disk_bytes: int = setting(
        10 * 2**30, at_least=1, help="most bytes of --prefix-cache-dir; takes KiB, MiB, GiB"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        is_recorded = getattr(self, "record", None) is not None
        if self.prefix_cache_dir is not None and (not self.enable_prefix_caching or is_recorded):
            raise ConfigError(
                "prefix_cache_dir goes with enable_prefix_caching, and without record, whose replay lacks the files"
            )


EXTENSION = EngineExtension(
    package=__name__,
    settings=DiskCacheSettings,
    is_used=lambda config: config.prefix_cache_dir is not None,
    part="disk_cache:DiskCache.of",
)
