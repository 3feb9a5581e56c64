"""/v1/messages/batches for Anthropic's clients: batches of /v1/batches in another form, in the same store."""

import asyncio
from io import BytesIO
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ....engine.errors import InvalidRequestError
from ...api.chat.timed_route import AnthropicRoute
from ...api.listing import Page
from ...api.openapi import KEEPING, LOOKUP, errors
from ...api.parameters import DIGITS, REPLAYED, IdempotencyHeader, key_of, says
from ...apis.anthropic.errors import SCHEMA
from ...http.auth import owner_of
from ...http.errors import ResultNotFoundError
from ...http.json_response import JsonResponse
from ...jobs.idempotency import IdempotencyKey
from ...results.batches.batch import AskedBatch, Batch
from ...results.batches.batches import Batches
from ...results.batches.part import BatchesPart
from ...results.batches.settings import BatchSettings
from ...service import service_of
from .request import ENDPOINT, MessageBatchRequest
from .response import batch_object, results_of

router = APIRouter(prefix="/v1/messages/batches", tags=["Anthropic"], route_class=AnthropicRoute)

ID_PREFIX = "msgbatch_"
WINDOW_S = 86_400.0
MAX_LISTED = 1000
BatchId = Annotated[str, Path(description="Id of the batch.")]
Limit = Annotated[
    int,
    Field(ge=1, le=MAX_LISTED),
    DIGITS,
    says(f"must be a number from 1 to {MAX_LISTED}"),
    Query(description="The most batches."),
]
_LOOKUP = errors(*LOOKUP, schema=SCHEMA)
_BATCH = "The batch."


def _batches(request: Request) -> Batches:
    return service_of(request).part(BatchesPart).batches


@router.post("", response_description="The batch, which begins now.", responses=errors(*KEEPING, schema=SCHEMA))
async def create(
    request: Request,
    body: Annotated[MessageBatchRequest, Depends(MessageBatchRequest.from_request)],
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Answer requests of /v1/messages in the background."""
    owner, key = owner_of(request), key_of(request, idempotency_key, body)
    async with _batches(request).idempotent(owner, key) as earlier:
        batch = earlier or await _create(request, body, owner=owner, key=key)
    return JsonResponse(batch_object(batch), headers=REPLAYED if earlier else None)


async def _create(request: Request, body: MessageBatchRequest, *, owner: str, key: IdempotencyKey | None) -> Batch:
    service = service_of(request)
    if service.state != "ready":
        raise service.lifecycle.not_ready()
    settings = service.settings.section(BatchSettings)
    if len(body.requests) > (most := settings.max_batch_lines):
        raise InvalidRequestError(
            f"{len(body.requests)} requests; send fewer, or raise --max-batch-lines above {most}", param="requests"
        )
    batches, contents = _batches(request), await asyncio.to_thread(body.file)
    file = await batches.files.add(BytesIO(contents), owner=owner, filename="message_batch.jsonl")
    asked = AskedBatch(
        endpoint=ENDPOINT,
        input_file_id=file.file_id,
        completion_window="24h",
        window_s=WINDOW_S,
        metadata=None,
        files_expire_after=settings.file_ttl,
        defaults=service.default_sampling_params,
        id_prefix=ID_PREFIX,
        total=len(body.requests),
    )
    return await batches.create(asked, owner=owner, key=key)


@router.get("", response_description="A page of the caller's batches.", responses=_LOOKUP)
async def list_batches(
    request: Request,
    limit: Limit = 20,
    before_id: Annotated[str | None, Query(description="Only batches before this one in the list.")] = None,
    after_id: Annotated[str | None, Query(description="Only batches after this one in the list.")] = None,
) -> Response:
    """The caller's batches, newest first."""
    if before_id is not None and after_id is not None:
        raise InvalidRequestError("send before_id or after_id, not both", param="before_id")
    page = Page(limit + 1, before_id or after_id, ascends=before_id is not None)
    rows = await _batches(request).list(owner_of(request), page, id_prefix=ID_PREFIX)
    batches = rows[:limit][::-1] if before_id is not None else rows[:limit]
    data = [batch_object(batch) for batch in batches if await _has_input(request, batch)]
    first_id, last_id = (data[0]["id"], data[-1]["id"]) if data else (None, None)
    return JsonResponse({"data": data, "has_more": len(rows) > limit, "first_id": first_id, "last_id": last_id})


@router.get("/{batch_id}", response_description=_BATCH, responses=_LOOKUP)
async def retrieve(request: Request, batch_id: BatchId) -> Response:
    """The batch as it is now."""
    return JsonResponse(batch_object(await _found(request, batch_id)))


@router.post("/{batch_id}/cancel", response_description="The batch, which will end soon.", responses=_LOOKUP)
async def cancel(request: Request, batch_id: BatchId) -> Response:
    """Answer no further requests. Answers so far are kept."""
    await _found(request, batch_id)
    return JsonResponse(batch_object(await _batches(request).cancel(batch_id, owner=owner_of(request))))


@router.get(
    "/{batch_id}/results",
    response_class=StreamingResponse,
    response_description="A line of JSON for each request.",
    responses=_LOOKUP,
)
async def results(request: Request, batch_id: BatchId) -> Response:
    """The results of a batch that has ended, as lines of JSON in any order."""
    batch = await _found(request, batch_id)
    if not batch.is_over:
        raise InvalidRequestError("the batch has not ended; its results come when processing_status is ended")
    return StreamingResponse(results_of(batch, _batches(request).files), media_type="application/x-jsonl")


@router.delete("/{batch_id}", response_description="Deleted.", responses=_LOOKUP)
async def delete(request: Request, batch_id: BatchId) -> Response:
    """Delete a batch that has ended, with its results."""
    batch = await _found(request, batch_id)
    if not batch.is_over:
        raise InvalidRequestError("the batch has not ended; cancel it first")
    await _batches(request).delete(batch)
    return JsonResponse({"id": batch_id, "type": "message_batch_deleted"})


async def _found(request: Request, batch_id: str) -> Batch:
    """Find the caller's batch. Raises ResultNotFoundError."""
    if not batch_id.startswith(ID_PREFIX):
        raise ResultNotFoundError("batch")
    batch = await _batches(request).find(batch_id, owner=owner_of(request))
    if not await _has_input(request, batch):
        raise ResultNotFoundError("batch")
    return batch


async def _has_input(request: Request, batch: Batch) -> bool:
    """True unless the batch was deleted: its input file goes first, on any server."""
    try:
        await _batches(request).files.find(batch.input_file_id, owner=batch.owner)
    except ResultNotFoundError:
        return False
    return True
