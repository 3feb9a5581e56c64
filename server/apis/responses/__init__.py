"""OpenAI's Responses API at /v1/responses."""

from ...extension import Extension

EXTENSION = Extension(
    package=__name__,
    requires=("server/apis/openai", "server/api/chat"),
    paths=("/v1/responses",),
    router="routes:router",
    endpoints={"/v1/responses": "routes:respond_batched"},
    kept_kinds={"response": "routes:KEPT_RESPONSE"},
)
