"""/v1/embeddings for batches of files."""

from collections.abc import Mapping
from typing import Any

from ...api.request_model import read_fields
from ...service import Service
from .request import EmbeddingRequest, length_of
from .response import embedding_list
from .work import complete


async def embed_batched(
    service: Service, fields: Mapping[str, Any], *, owner: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer like POST /v1/embeddings, in the background. Raises like the route."""
    body = read_fields(service, fields, EmbeddingRequest)
    inputs, params = body.inputs(), body.params()
    vectors, usage = await complete(
        service,
        lambda pooler: pooler.embedding_prompts(inputs, params),
        length=length_of(inputs),
        owner=owner,
        user=body.user,
        is_background=True,
    )
    return embedding_list(service, vectors, usage, encoding_format=body.encoding_format)
