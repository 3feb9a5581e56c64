"""Ollama's API at /api, left out with --no-ollama-api."""

from ...extension import Extension
from .settings import OllamaSettings

EXTENSION = Extension(
    package=__name__,
    requires=("server/api/chat",),
    settings=OllamaSettings,
    is_used=lambda settings: settings.ollama_api,
    paths=("/api",),
    router="routes:router",
    error_form="errors:error_answer",
)
