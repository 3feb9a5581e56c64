"""OpenAI's conversations at /v1/conversations, which responses read and add to."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("server/extras/responses", "server/extras/batches", "server/extras/durable", "server/extras/chat"),
    paths=("/v1/conversations",),
    router="routes:router",
    part="part:ConversationsPart",
    starts=lambda settings: False,  # made with the first conversation
)
