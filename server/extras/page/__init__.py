"""Page that shows the engine at work: its files, and the stream of steps that it reads."""

from ...extension import Extension
from .settings import PageSettings

EXTENSION = Extension(
    package=__name__,
    requires=("engine/extras/inspection",),
    settings=PageSettings,
    paths=("/page", "/stats/stream", "/stats/simulate", "/result/*/explain"),
    router="routes:router",
    part="part:PagePart",
    starts=lambda settings: False,
    index="assets:index",
    is_open="assets:is_open",
)
