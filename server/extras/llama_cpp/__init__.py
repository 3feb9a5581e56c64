"""API of llama.cpp's server at /completion, /props and /apply-template."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("server/extras/chat", "engine/extras/chat", "engine/extras/structured_output"),
    paths=("/completion", "/props", "/apply-template"),
    router="routes:router",
)
