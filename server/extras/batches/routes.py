"""/v1/files and /v1/batches for the `openai` package."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from ...api.listing import list_object, page_of
from ...api.openapi import IDEMPOTENCY_KEY, KEEPING, LOOKUP, UPLOAD, operation, parameter, upload
from ...api.request_model import REPLAYED, idempotency_key
from ...http.auth import owner_of
from ...http.json_body import read_json
from ...http.json_response import JsonResponse
from ...jobs.idempotency import IdempotencyKey
from ...service import service_of
from ..durable.settings import DurableSettings
from .batch import Batch
from .batches import Batches
from .form import read_form
from .part import BatchesPart
from .request import BatchRequest, uploaded
from .response import batch_object, file_object
from .settings import BatchSettings

router = APIRouter(prefix="/v1", tags=["OpenAI"])

UPLOAD_S = 600.0
_FORM_BYTES = 64 * 1024  # limit for the form's other fields
FILE_ID = parameter("file_id", "Id of the file.", place="path")
BATCH_ID = parameter("batch_id", "Id of the batch.", place="path")
AFTER = parameter("after", "Id of the last row of the previous page.")
ORDER = parameter("order", "desc: newest first.", type="string", enum=["asc", "desc"])
PURPOSE = parameter("purpose", "Only files with this purpose.")


def _batches(request: Request) -> Batches:
    return service_of(request).part(BatchesPart).batches


def _limit(most: int) -> dict[str, object]:
    return parameter("limit", "The most rows.", type="integer", minimum=1, maximum=most)


@router.post("/files", **upload({200: "The file."}, errors=UPLOAD))
async def create_file(request: Request) -> Response:
    """Upload a file of requests, one JSON object per line."""
    service = service_of(request)
    async with read_form(
        request,
        max_bytes=service.settings.section(BatchSettings).max_file_bytes + _FORM_BYTES,
        setting="--max-file-bytes",
        deadline_s=UPLOAD_S,
        in_memory=service.settings.section(DurableSettings).results_key_file
        is not None,  # nothing unencrypted may reach the disk
    ) as form:
        part, ttl_s = uploaded(form)
        name = (part.filename or "upload")[:256]
        file = await _batches(request).files.add(part.file, owner=owner_of(request), filename=name, ttl_s=ttl_s)
    return JsonResponse(file_object(file))


@router.get(
    "/files",
    **operation(
        {200: "A page of the caller's files."}, errors=LOOKUP, parameters=[AFTER, _limit(10_000), ORDER, PURPOSE]
    ),
)
async def list_files(request: Request) -> Response:
    """The caller's files, newest first."""
    page = page_of(request.query_params, default=10_000, most=10_000)
    files = _batches(request).files
    rows = await files.list(owner_of(request), page, purpose=request.query_params.get("purpose"))
    return JsonResponse(list_object([file_object(row) for row in rows], page))


@router.get("/files/{file_id}", **operation({200: "The file."}, errors=LOOKUP, parameters=[FILE_ID]))
async def retrieve_file(request: Request) -> Response:
    """The metadata of a file."""
    file = await _batches(request).files.find(request.path_params["file_id"], owner=owner_of(request))
    return JsonResponse(file_object(file))


@router.get("/files/{file_id}/content", **operation({200: "The file's bytes."}, errors=LOOKUP, parameters=[FILE_ID]))
async def file_content(request: Request) -> Response:
    """The contents of a file."""
    files = _batches(request).files
    file = await files.find(request.path_params["file_id"], owner=owner_of(request))
    headers = {"Content-Length": str(file.num_bytes)}
    return StreamingResponse(files.contents(file.file_id), media_type="application/octet-stream", headers=headers)


@router.delete("/files/{file_id}", **operation({200: "Deleted."}, errors=LOOKUP, parameters=[FILE_ID]))
async def delete_file(request: Request) -> Response:
    """Delete a file that no unfinished batch reads."""
    file_id = request.path_params["file_id"]
    await _batches(request).delete_file(file_id, owner=owner_of(request))
    return JsonResponse({"id": file_id, "object": "file", "deleted": True})


@router.post(
    "/batches",
    **operation(
        {200: "The batch, which is validated next."},
        errors=KEEPING,
        body=BatchRequest,
        example={"input_file_id": "file-…", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
        parameters=[IDEMPOTENCY_KEY],
    ),
)
async def create_batch(request: Request) -> Response:
    """Answer a file of requests in the background."""
    service, owner = service_of(request), owner_of(request)
    body = BatchRequest.read(await read_json(request, max_bytes=service.settings.max_body_bytes))
    key = idempotency_key(request, body)
    async with _batches(request).idempotent(owner, key) as earlier:
        batch = earlier or await _create(request, body, owner=owner, key=key)
    return JsonResponse(batch_object(batch), headers=REPLAYED if earlier else None)


async def _create(request: Request, body: BatchRequest, *, owner: str, key: IdempotencyKey | None) -> Batch:
    service = service_of(request)
    if service.state != "ready":
        raise service.lifecycle.not_ready()
    file_ttl = service.settings.section(BatchSettings).file_ttl
    asked = body.asked(file_ttl=file_ttl, defaults=service.default_sampling_params)
    return await _batches(request).create(asked, owner=owner, key=key)


@router.get(
    "/batches", **operation({200: "A page of the caller's batches."}, errors=LOOKUP, parameters=[AFTER, _limit(100)])
)
async def list_batches(request: Request) -> Response:
    """The caller's batches, newest first."""
    page = page_of(request.query_params, default=20, most=100)
    batches = await _batches(request).list(owner_of(request), page)
    return JsonResponse(list_object([batch_object(batch) for batch in batches], page))


@router.get("/batches/{batch_id}", **operation({200: "The batch."}, errors=LOOKUP, parameters=[BATCH_ID]))
async def retrieve_batch(request: Request) -> Response:
    """The batch as it is now."""
    batch_id = request.path_params["batch_id"]
    return JsonResponse(batch_object(await _batches(request).find(batch_id, owner=owner_of(request))))


@router.post(
    "/batches/{batch_id}/cancel",
    **operation({200: "The batch, which will end soon."}, errors=LOOKUP, parameters=[BATCH_ID]),
)
async def cancel_batch(request: Request) -> Response:
    """Answer no further lines. Answers so far are kept."""
    batch_id = request.path_params["batch_id"]
    return JsonResponse(batch_object(await _batches(request).cancel(batch_id, owner=owner_of(request))))
