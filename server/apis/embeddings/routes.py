"""Routes that pool: embeddings, rerank, score, classify, pooling. A disconnect aborts; nothing is kept."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from ...api.openapi import GENERATION, errors
from ...api.request_model import read_fields
from ...http.json_writer import SlicedResponse
from ...service import Service, service_of
from .request import EmbeddingRequest, RerankRequest, ScoreRequest, TextsRequest, length_of
from .response import class_list, embedding_list, pooling_list, ranking, score_list
from .work import complete, pooled, pooler_of, scored

router = APIRouter(tags=["embeddings"], responses=errors(*GENERATION))
Body = Annotated[EmbeddingRequest, Depends(EmbeddingRequest.from_request)]
Texts = Annotated[TextsRequest, Depends(TextsRequest.from_request)]
Documents = Annotated[RerankRequest, Depends(RerankRequest.from_request)]
Pairs = Annotated[ScoreRequest, Depends(ScoreRequest.from_request)]


@router.post("/embeddings", include_in_schema=False)
@router.post("/v1/embeddings", response_description="An embedding for each input.")
async def embeddings(request: Request, body: Body) -> Response:
    """Embed texts or token ids."""
    inputs, params = body.inputs(), body.params()
    vectors, usage = await pooled(
        request, lambda pooler: pooler.embedding_prompts(inputs, params), length=length_of(inputs), user=body.user
    )
    answer = embedding_list(service_of(request), vectors, usage, encoding_format=body.encoding_format)
    return _json_response(request, answer)


async def embed_batched(
    service: Service, fields: Mapping[str, Any], *, owner: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer a line of a batch like POST /v1/embeddings, in the background. Raises like the route."""
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


@router.post("/rerank", include_in_schema=False)
@router.post("/v2/rerank", include_in_schema=False)
@router.post("/v1/rerank", response_description="The documents by falling score.")
async def rerank(request: Request, body: Documents) -> Response:
    """Sort documents by their fit to a query."""
    pairs, texts = body.pairs(), body.texts()
    scores, usage = await scored(request, pairs, body.params(), user=body.user, instruction=body.instruction)
    # Cohere's second version returns no documents, and vLLM's answer of either path has them unless they are declined.
    is_wanted = body.return_documents is not False
    service = service_of(request)
    return _json_response(
        request, ranking(service, scores, usage, texts=texts if is_wanted else None, top_n=body.top_n)
    )


@router.post("/v1/score", include_in_schema=False)
@router.post("/score", response_description="A score for each pair.")
async def score(request: Request, body: Pairs) -> Response:
    """Score pairs of texts."""
    scores, usage = await scored(request, body.pairs(), body.params(), user=body.user)
    return _json_response(request, score_list(service_of(request), scores, usage))


@router.post("/v1/classify", include_in_schema=False)
@router.post("/classify", response_description="The label of each input.")
async def classify(request: Request, body: Texts) -> Response:
    """Classify texts by the model's labels."""
    inputs, params = body.inputs(), body.params()
    rows, usage = await pooled(
        request, lambda pooler: pooler.class_prompts(inputs, params), length=length_of(inputs), user=body.user
    )
    service = service_of(request)
    return _json_response(request, class_list(service, pooler_of(service).labels, rows, usage))


@router.post("/v1/pooling", include_in_schema=False)
@router.post("/pooling", response_description="The states of all tokens of each input.")
async def pooling(request: Request, body: Texts) -> Response:
    """Return the state of every token, or with `task` embed or classify one result for each input."""
    inputs, params = body.inputs(), body.params()

    def read(pooler: Any) -> Any:
        makers = {"embed": pooler.embedding_prompts, "classify": pooler.class_prompts}
        return makers.get(body.task or "", pooler.state_prompts)(inputs, params)

    results, usage = await pooled(request, read, length=length_of(inputs), user=body.user)
    answer = pooling_list(service_of(request), results, usage, encoding_format=body.encoding_format)
    return _json_response(request, answer)


def _json_response(request: Request, answer: dict[str, Any]) -> Response:
    return SlicedResponse(service_of(request).json.slices(answer))
