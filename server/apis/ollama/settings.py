"""The setting of Ollama's API."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class OllamaSettings(ServerSettings):
    """Switch of the API."""

    ollama_api: bool = setting(True, help="serve Ollama's API under /api")
