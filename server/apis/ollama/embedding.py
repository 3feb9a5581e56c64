"""Ollama's /api/embed and /api/embeddings, for a model that pools. Inputs that are too long are cut, as Ollama does."""

import time
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from pydantic import SkipValidation
from starlette.requests import Request

from ....engine.errors import InvalidRequestError
from ....engine.extras.pooling.params import PoolingParams
from ...api.request_model import ModelName
from ...service import service_of
from ..embeddings.request import inputs_of, length_of
from ..embeddings.work import pooled
from .request import OllamaBody

_IGNORED: dict[str, tuple[Any, ...]] = dict.fromkeys(("options", "keep_alive"), ())


class OllamaEmbedRequest(OllamaBody):
    """Texts to embed."""

    example: ClassVar = {"input": ["The food was good.", "It rains."]}
    ignored: ClassVar = _IGNORED
    model: ModelName = None
    input: SkipValidation[str | list[str]]
    truncate: bool = True
    dimensions: int | None = None


class OllamaEmbeddingsRequest(OllamaBody):
    """A text to embed, in Ollama's older form."""

    example: ClassVar = {"prompt": "The food was good."}
    ignored: ClassVar = _IGNORED
    model: ModelName = None
    prompt: str = ""


async def embed(request: Request, body: OllamaEmbedRequest) -> dict[str, Any]:
    """Embed texts. Raises like `pooled`."""
    start = time.perf_counter_ns()
    inputs = inputs_of(body.input, param="input")
    if not all(isinstance(item, str) for item in inputs):
        raise InvalidRequestError("input must be a text or a list of texts", param="input")
    vectors, num_tokens = await _embedded(request, inputs, truncate=body.truncate, dimensions=body.dimensions)
    return {
        "model": service_of(request).settings.model_name,
        "embeddings": vectors,
        "total_duration": time.perf_counter_ns() - start,
        "load_duration": 0,
        "prompt_eval_count": num_tokens,
    }


async def embeddings(request: Request, body: OllamaEmbeddingsRequest) -> dict[str, Any]:
    """Embed a text; an empty one, by which clients load a model, has no numbers. Raises like `pooled`."""
    vectors = (await _embedded(request, [body.prompt], truncate=True))[0] if body.prompt else iter([[]])
    return {"embedding": next(vectors)}


async def _embedded(
    request: Request, texts: Sequence[str], *, truncate: bool, dimensions: int | None = None
) -> tuple[Iterator[list[float]], int]:
    params = PoolingParams(truncate_prompt_tokens=-1 if truncate else None, dimensions=dimensions)
    vectors, usage = await pooled(
        request, lambda pooler: pooler.embedding_prompts(texts, params), length=length_of(texts)
    )
    return (vector.tolist() for vector in vectors), usage.num_tokens
