"""Ollama's API at /api, left out with --no-ollama-api."""

from dataclasses import dataclass

from ....engine.config.setting import setting
from ...extension import Extension
from ...server_settings import ServerSettings


@dataclass(frozen=True, kw_only=True)
class OllamaSettings(ServerSettings):
    """Switch of the API."""

    ollama_api: bool = setting(True, help="serve Ollama's API under /api")


EXTENSION = Extension(
    package=__name__,
    requires=("server/api/chat", "engine/extras/pooling"),
    settings=OllamaSettings,
    is_used=lambda settings: settings.ollama_api,
    paths=("/api",),
    router="routes:router",
    error_form="errors:error_answer",
)
