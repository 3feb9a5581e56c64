"""Routes that Amazon SageMaker asks of a container: /ping and /invocations."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("server/extras/openai", "server/extras/chat", "engine/extras/chat", "engine/extras/structured_output"),
    paths=("/ping", "/invocations"),
    router="routes:router",
)
