"""Pages of a chat and of the engine at work: their files, and the stream of steps that both read."""

from ...extension import Extension
from .settings import PageSettings

EXTENSION = Extension(
    package=__name__,
    requires=("engine/extras/inspection", "engine/extras/simulation", "engine/extras/deadlines"),
    settings=PageSettings,
    paths=("/page", "/engine", "/stats/stream", "/stats/simulate", "/result/*/explain"),
    router="routes:router",
    part="part:PagePart",
    starts=lambda settings: False,
    index="assets:index",
    is_open="assets:is_open",
)
