"""Anthropic's Messages API at /v1/messages."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("server/api/chat",),
    paths=("/v1/messages",),
    router="routes:router",
    error_form="errors:error_answer",
    endpoints={"/v1/messages": "routes:message_batched"},
)
