"""Anthropic's batches of messages at /v1/messages/batches."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("server/apis/anthropic", "server/results/batches", "server/results/durable", "server/api/chat"),
    paths=("/v1/messages/batches",),
    router="routes:router",
)
