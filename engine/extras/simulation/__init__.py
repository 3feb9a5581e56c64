"""The scheduler without a model: simulated time, recorded schedules, pictures. No torch."""

from dataclasses import dataclass

from ...config.engine_settings import EngineSettings
from ...config.setting import setting
from ...extension import EngineExtension


@dataclass(frozen=True, kw_only=True)
class RecordSettings(EngineSettings):
    """Place of a recording."""

    record: str | None = setting(None, help="write every decision and arrival to this file, for `replay` and `plot`")


EXTENSION = EngineExtension(
    package=__name__, settings=RecordSettings, is_used=lambda config: bool(config.record), part="recording:Recording"
)
