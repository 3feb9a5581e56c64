"""API of llama.cpp's server at /completion, /infill, /props, /slots and /apply-template."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("server/api/chat",),
    paths=("/completion", "/infill", "/props", "/slots", "/apply-template"),
    router="routes:router",
    error_form="response:error_answer",
)
