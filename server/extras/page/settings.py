"""The setting of the page."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class PageSettings(ServerSettings):
    """Switch of the page. Its streams are served without it, too."""

    page: bool = setting(True, help="serve the page that shows the engine at work, at /")
