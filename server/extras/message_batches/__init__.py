"""Anthropic's batches of messages at /v1/messages/batches."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("server/extras/anthropic", "server/extras/batches", "server/extras/durable", "server/extras/chat"),
    paths=("/v1/messages/batches",),
    router="routes:router",
)
