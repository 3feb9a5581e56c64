"""API of Hugging Face's TGI at /, /generate (by its `inputs`), /generate_stream and /info."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("server/extras/chat", "engine/extras/chat", "engine/extras/structured_output"),
    paths=("/", "/generate_stream", "/info"),
    router="routes:router",
    part="part:TgiPart",
)
