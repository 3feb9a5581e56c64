"""The native routes: submit, poll, stream, re-attach, cancel."""

import math
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ....engine.errors import InvalidRequestError
from ....engine.sampling_params import SamplingParams
from ...http.auth import owner_of
from ...http.disconnect import unless_disconnected
from ...http.json_response import JsonResponse, SlicedResponse, dump_slices
from ...jobs.idempotency import IdempotencyKey
from ...jobs.job import Attachment, Job
from ...jobs.result_store import seq_id_of
from ...service import Service, service_of
from ...storage.durable_results import KeptRequest
from ..openapi import IDEMPOTENCY_KEY, KEEPING, LOOKUP, events, operation, parameter
from ..request_model import REPLAYED, idempotency_key, read_fields, read_request
from ..streaming import event_id, stream
from .request import GenerateRequest
from .response import result_object
from .stream import NativeStreamWriter

router = APIRouter(tags=["native"])
KIND = "generate"  # of kept requests

MAX_WAIT_S = 60.0
SEQ_ID = parameter("seq_id", "The id that POST /generate gave.", place="path")
WAIT = parameter("wait", "Answer when it is complete or after so many seconds.", type="number", minimum=0, maximum=60)
STARTING_AFTER = parameter("starting_after", "The last event that the reader has.", type="integer", minimum=0)
LAST_EVENT_ID = parameter(
    "Last-Event-ID", "The same, from browsers; it wins.", place="header", type="integer", minimum=0
)


_EVENTS = """id: 0
event: token
data: {"index": 0, "text": " there", "token_ids": [421]}

id: 1
event: done
data: {…the result…}
"""
_STREAM = events("`token` events, then `done` with the result, or `error`; a comment every 15 s of silence.", _EVENTS)
_RESULT = "The result: partial while it runs, the same for as long as it is kept."


@router.post(
    "/generate",
    **operation(
        {202: "Accepted: where to look, as `result_url` and `stream_url`.", 200: _STREAM},
        errors=KEEPING,
        body=GenerateRequest,
        example={"prompt": "Once upon a time", "max_tokens": 32, "stream": False},
        parameters=[IDEMPOTENCY_KEY],
    ),
)
async def generate(request: Request) -> Response:
    """Submit a prompt: 202 with the id to ask for, or with `"stream": true` the events at once."""
    service = service_of(request)
    body = await read_request(request, GenerateRequest)
    key = idempotency_key(request, body)
    async with service.results.once(owner_of(request), key) as earlier:
        job = earlier or await _submitted(service, body, owner=owner_of(request), key=key)
    headers = REPLAYED if earlier else {}
    if not body.stream:
        return _accepted(job, headers)
    ends_it = key is None and not body.durable
    return stream(
        [job],
        NativeStreamWriter(job),
        on_disconnect=lambda: service.abort(job) if ends_it else None,
        headers={"X-Seq-Id": job.seq_id, "Location": f"/result/{job.seq_id}", **headers},
    )


async def _submitted(service: Service, body: GenerateRequest, *, owner: str, key: IdempotencyKey | None) -> Job:
    """The job of this request, kept from now on."""
    params = body.sampling()
    is_kept = body.durable or not body.stream
    job = service.new_job(params, owner=owner, key=key)
    service.results.add(job)
    try:
        kept = KeptRequest(kind=KIND, body=body.as_sent) if is_kept else None
        await service.submit(job, body.prompt, params, user=body.user, kept=kept)
    except BaseException:
        service.abort(job)
        service.results.forget(job)
        raise
    return job


async def generate_batched(service: Service, fields: Mapping[str, Any], *, owner: str) -> dict[str, Any]:
    """The result of POST /generate, in the background; it is not kept. Raises as the route."""
    body = read_fields(service, fields, GenerateRequest)
    params = body.sampling()
    job = service.new_job(params, owner=owner)
    await service.complete([job], [body.prompt], params, user=body.user, is_background=True)
    return result_object(job)


class KeptGenerate:
    """The KeptKind of POST /generate."""

    def attachment(self, stored: Any) -> None:
        """None is needed."""

    def params(self, body: Mapping[str, Any], attachment: Attachment | None) -> SamplingParams:
        """As it had them."""
        return GenerateRequest.read(body).sampling()


@router.get("/result/{seq_id}", **operation({200: _RESULT}, errors=LOOKUP, parameters=[SEQ_ID, WAIT]))
async def result(request: Request) -> Response:
    """The result so far; `?wait=30` answers when it is complete or after so many seconds."""
    wait_s = _wait_s(request)
    job = await _job(request)
    if wait_s and not job.finished:
        await unless_disconnected(request.receive, job.wait(wait_s))
    if job.finished:
        job.was_read.set()
    return SlicedResponse(await dump_slices(result_object(job)))


@router.get(
    "/result/{seq_id}/stream",
    **operation({200: _STREAM}, errors=LOOKUP, parameters=[SEQ_ID, STARTING_AFTER, LAST_EVENT_ID]),
)
async def result_stream(request: Request) -> Response:
    """The events from the beginning, or after Last-Event-ID or `?starting_after=N`. A disconnect cancels nothing."""
    after = _starting_after(request)
    job = await _job(request)
    return stream([job], NativeStreamWriter(job, first_id=after + 1), first_id=after + 1)


@router.delete(
    "/result/{seq_id}", **operation({200: "What it was before: its `status`."}, errors=LOOKUP, parameters=[SEQ_ID])
)
async def delete(request: Request) -> Response:
    """Cancel if it runs, and forget it."""
    service = service_of(request)
    job = await _job(request)
    status = job.status if job.finished else "cancelled"
    service.abort(job)
    await service.results.delete(job)
    return JsonResponse({"seq_id": job.seq_id, "status": status, "deleted": True})


async def _job(request: Request) -> Job:
    """The job in the path, if it is the caller's. Raises ResultNotFoundError."""
    return await service_of(request).results.find(seq_id_of(request.path_params["seq_id"]), owner=owner_of(request))


def _accepted(job: Job, headers: Mapping[str, str]) -> Response:
    url = f"/result/{job.seq_id}"
    body = {"seq_id": job.seq_id, "status": job.status, "result_url": url, "stream_url": f"{url}/stream"}
    return JsonResponse(body, status_code=202, headers={"Location": url, "Retry-After": "1", **headers})


def _wait_s(request: Request) -> float:
    text = request.query_params.get("wait", "0")
    try:
        wait_s = float(text)
    except ValueError:
        wait_s = math.nan
    if not 0 <= wait_s <= MAX_WAIT_S:
        raise InvalidRequestError(f"wait must be a number of seconds from 0 to {MAX_WAIT_S:g}", param="wait")
    return wait_s


def _starting_after(request: Request) -> int:
    """The last event id that the reader has; -1 for none. The header is younger than the URL, so it wins."""
    for name, text in (
        ("Last-Event-ID", request.headers.get("last-event-id")),
        ("starting_after", request.query_params.get("starting_after")),
    ):
        if text:
            return event_id(text, name=name)
    return -1
