"""The setting of the pages."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class PageSettings(ServerSettings):
    """Switch of the pages. Their streams are served without them, too."""

    page: bool = setting(True, help="serve the chat at / and the engine view at /engine")
