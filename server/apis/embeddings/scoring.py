"""Scores of pairs, by a model's head for pairs or by the cosine of its embeddings."""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request

from ....engine.extras.pooling.params import Pair, PoolingParams, similarity
from ...service import service_of
from .request import length_of
from .work import Usage, pooled, pooler_of


async def scored(
    request: Request, pairs: Sequence[Pair], params: PoolingParams, *, user: str, instruction: str | None = None
) -> tuple[list[float], Usage]:
    """Return the score of each pair. Raises like `pooled`."""
    if pooler_of(service_of(request)).classifies:
        read = lambda pooler: pooler.score_prompts(pairs, params, instruction=instruction)  # noqa: E731
        results, usage = await pooled(request, read, length=length_of(pairs), user=user)
        return [float(result[0]) for result in results], usage
    texts = list(dict.fromkeys(text for pair in pairs for text in pair))  # a query of many documents is embedded once
    vectors, usage = await _embedded(request, texts, params, user=user)
    found = dict(zip(texts, (vector.tolist() for vector in vectors), strict=True))
    return [similarity(found[pair.query], found[pair.document]) for pair in pairs], usage


async def _embedded(
    request: Request, texts: Sequence[str], params: PoolingParams, *, user: str
) -> tuple[list[Any], Usage]:
    return await pooled(
        request, lambda pooler: pooler.embedding_prompts(texts, params), length=length_of(texts), user=user
    )
