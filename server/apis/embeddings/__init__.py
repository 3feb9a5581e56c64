"""Embeddings, scores and classes of texts: OpenAI's, Cohere's, Jina's and vLLM's routes, for a model that pools."""

from ...extension import Extension
from .pooling_models import may_pool

EXTENSION = Extension(
    package=__name__,
    requires=("engine/extras/pooling",),
    is_used=may_pool,
    paths=(
        "/v1/embeddings",
        "/embeddings",
        "/v1/rerank",
        "/v2/rerank",
        "/rerank",
        "/v1/score",
        "/score",
        "/v1/classify",
        "/classify",
        "/v1/pooling",
        "/pooling",
    ),
    router="routes:router",
    endpoints={"/v1/embeddings": "batched:embed_batched"},
)
