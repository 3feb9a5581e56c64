"""Embeddings, scores and classes of texts: OpenAI's, Cohere's, Jina's and vLLM's routes, for a model that pools."""

import json
from pathlib import Path
from typing import Any

from ...extension import Extension


def may_pool(settings: Any) -> bool:
    """False if the model's files say that it makes text alone. If this cannot be known, routes answer 404 by name."""
    if any(getattr(settings, name, None) is not None for name in ("pooler_config", "embedding_model")):
        return True
    if settings.is_demo or settings.model == "smollm2" or str(settings.model).endswith(".gguf"):
        return False
    folder = Path(str(settings.model))
    if not folder.is_dir() or (folder / "modules.json").exists():
        return True
    try:
        names = json.loads((folder / "config.json").read_bytes()).get("architectures") or [""]
        return not str(names[0]).endswith(("ForCausalLM", "LMHeadModel"))
    except (OSError, ValueError, AttributeError, LookupError):
        return False  # loading the model names the fault


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
    endpoints={"/v1/embeddings": "routes:embed_batched"},
)
