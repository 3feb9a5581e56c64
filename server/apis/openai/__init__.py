"""OpenAI's completions, chat completions and models APIs, under /v1 and, as llama.cpp's server has them, without it."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("server/api/chat",),
    paths=("/v1/models", "/v1/completions", "/v1/chat/completions", "/models", "/completions", "/chat/completions"),
    router="routes:router",
    endpoints={"/v1/completions": "routes:complete_batched", "/v1/chat/completions": "routes:chat_batched"},
)
