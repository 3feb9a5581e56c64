"""Routes that Amazon SageMaker asks of a container: /ping and /invocations."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("server/apis/openai", "server/api/chat"),
    paths=("/ping", "/invocations"),
    router="routes:router",
)
