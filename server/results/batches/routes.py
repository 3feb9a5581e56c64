"""/v1/files and /v1/batches for the `openai` package."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ....engine.errors import InvalidRequestError
from ...api.listing import Page, list_object, page_of
from ...api.openapi import KEEPING, KEYED, LOOKUP, errors
from ...api.parameters import REPLAYED, IdempotencyHeader, key_of
from ...http.auth import owner_of
from ...http.json_response import JsonResponse
from ...jobs.idempotency import IdempotencyKey
from ...service import service_of
from . import BatchSettings
from .batch import Batch
from .batches import Batches
from .form import read_form
from .part import BatchesPart
from .request import UPLOAD, BatchRequest, uploaded
from .response import batch_object, file_object

router = APIRouter(prefix="/v1", tags=["OpenAI"])

UPLOAD_S = 600.0
_FORM_BYTES = 64 * 1024  # limit for the form's other fields
FileId = Annotated[str, Path(description="Id of the file.")]
BatchId = Annotated[str, Path(description="Id of the batch.")]


def _batches(request: Request) -> Batches:
    return service_of(request).part(BatchesPart).batches


@router.post(
    "/files",
    response_description="The file.",
    responses=errors(*KEYED, 408, 413, 415, 503),
    openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": UPLOAD}}}},
)
async def create_file(request: Request) -> Response:
    """Upload a file of requests, one JSON object per line."""
    service = service_of(request)
    async with read_form(
        request,
        max_bytes=service.settings.section(BatchSettings).max_file_bytes + _FORM_BYTES,
        setting="--max-file-bytes",
        deadline_s=UPLOAD_S,
        arriving=_batches(request).files.arriving,
    ) as form:
        part, ttl_s = uploaded(form)
        name = (part.filename or "upload")[:256]
        file = await _batches(request).files.add(part.file, owner=owner_of(request), filename=name, ttl_s=ttl_s)
    return JsonResponse(file_object(file))


@router.get("/files", response_description="A page of the caller's files.", responses=errors(*LOOKUP))
async def list_files(
    request: Request,
    page: Annotated[Page, Depends(page_of(default=10_000, most=10_000))],
    purpose: Annotated[str | None, Query(description="Only files with this purpose.")] = None,
) -> Response:
    """The caller's files, newest first."""
    files = _batches(request).files
    rows = await files.list(owner_of(request), page, purpose=purpose)
    return JsonResponse(list_object([file_object(row) for row in rows], page))


@router.get("/files/{file_id}", response_description="The file.", responses=errors(*LOOKUP))
async def retrieve_file(request: Request, file_id: FileId) -> Response:
    """The metadata of a file."""
    file = await _batches(request).files.find(file_id, owner=owner_of(request))
    return JsonResponse(file_object(file))


@router.get("/files/{file_id}/content", response_description="The file's bytes.", responses=errors(*LOOKUP))
async def file_content(request: Request, file_id: FileId) -> Response:
    """The contents of a file."""
    files = _batches(request).files
    file = await files.find(file_id, owner=owner_of(request))
    # An attachment: a browser that opens it must not show it as a page of this server.
    name = quote(file.filename, safe="", errors="replace")
    headers = {"Content-Length": str(file.num_bytes), "Content-Disposition": f"attachment; filename*=UTF-8''{name}"}
    return StreamingResponse(files.contents(file.file_id), media_type="application/octet-stream", headers=headers)


@router.delete("/files/{file_id}", response_description="Deleted.", responses=errors(*LOOKUP))
async def delete_file(request: Request, file_id: FileId) -> Response:
    """Delete a file that no unfinished batch reads."""
    await _batches(request).delete_file(file_id, owner=owner_of(request))
    return JsonResponse({"id": file_id, "object": "file", "deleted": True})


@router.post("/batches", response_description="The batch, which is validated next.", responses=errors(*KEEPING))
async def create_batch(
    request: Request,
    body: Annotated[BatchRequest, Depends(BatchRequest.from_request)],
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Answer a file of requests in the background."""
    owner, key = owner_of(request), key_of(request, idempotency_key, body)
    async with _batches(request).idempotent(owner, key) as earlier:
        batch = earlier or await _create(request, body, owner=owner, key=key)
    return JsonResponse(batch_object(batch), headers=REPLAYED if earlier else None)


async def _create(request: Request, body: BatchRequest, *, owner: str, key: IdempotencyKey | None) -> Batch:
    service = service_of(request)
    if service.state != "ready":
        raise service.lifecycle.not_ready()
    if body.endpoint not in service.endpoints:
        raise InvalidRequestError(f"endpoint {body.endpoint} is not served here for this model", param="endpoint")
    file_ttl = service.settings.section(BatchSettings).file_ttl
    new = body.new_batch(file_ttl=file_ttl, defaults=service.default_sampling_params)
    return await _batches(request).create(new, owner=owner, key=key)


@router.get("/batches", response_description="A page of the caller's batches.", responses=errors(*LOOKUP))
async def list_batches(request: Request, page: Annotated[Page, Depends(page_of(default=20, most=100))]) -> Response:
    """The caller's batches, newest first."""
    batches = await _batches(request).list(owner_of(request), page)
    return JsonResponse(list_object([batch_object(batch) for batch in batches], page))


@router.get("/batches/{batch_id}", response_description="The batch.", responses=errors(*LOOKUP))
async def retrieve_batch(request: Request, batch_id: BatchId) -> Response:
    """The batch as it is now."""
    return JsonResponse(batch_object(await _batches(request).find(batch_id, owner=owner_of(request))))


@router.post(
    "/batches/{batch_id}/cancel", response_description="The batch, which will end soon.", responses=errors(*LOOKUP)
)
async def cancel_batch(request: Request, batch_id: BatchId) -> Response:
    """Answer no further lines. Answers so far are kept."""
    return JsonResponse(batch_object(await _batches(request).cancel(batch_id, owner=owner_of(request))))
