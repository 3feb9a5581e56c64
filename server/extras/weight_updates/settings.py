"""The setting of updates of weights."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class WeightSettings(ServerSettings):
    """Place of the files that POST /weights may name."""

    weights_dir: str | None = setting(
        None, help="folder that holds every path of POST /weights; without it an admin may name any folder"
    )
