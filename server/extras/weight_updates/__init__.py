"""Routes that change the weights, pause the engine and give back its memory, for training on rollouts."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...extension import Extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class WeightSettings(ServerSettings):
    """Place of the files that POST /weights may name."""

    weights_dir: str | None = setting(
        None, help="folder that holds every path of POST /weights; without it an admin may name any folder"
    )


EXTENSION = Extension(
    package=__name__,
    requires=("engine/extras/weight_updates",),
    settings=WeightSettings,
    paths=("/weights", "/pause", "/resume", "/sleep", "/wake_up", "/is_sleeping", "/is_paused"),
    router="routes:router",
)
