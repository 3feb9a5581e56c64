"""Pages of a chat and of the engine at work: their files, and the stream of steps that both read."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...extension import Extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class PageSettings(ServerSettings):
    """Switch of the pages. Their streams are served without them, too."""

    page: bool = setting(True, help="serve the chat at / and the engine view at /engine")


EXTENSION = Extension(
    package=__name__,
    requires=("engine/extras/inspection", "engine/extras/deadlines"),
    settings=PageSettings,
    paths=("/page", "/engine", "/stats/stream", "/result/*/explain"),
    router="routes:router",
    part="part:PagePart",
    starts=lambda settings: False,
    index="assets:index",
    is_open="assets:is_open",
)
