"""Routes that change the weights, pause the engine and give back its memory, for training on rollouts."""

from ...extension import Extension
from .settings import WeightSettings

EXTENSION = Extension(
    package=__name__,
    requires=("engine/extras/weight_updates",),
    settings=WeightSettings,
    paths=("/weights", "/pause", "/resume", "/sleep", "/wake_up", "/is_sleeping", "/is_paused"),
    router="routes:router",
)
