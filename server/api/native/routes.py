"""The native routes: submit, poll, stream, re-attach, cancel."""

import math

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ....engine.errors import InvalidRequestError
from ...http.auth import owner_of
from ...http.disconnect import unless_disconnected
from ...http.json_response import JsonResponse
from ...http.json_writer import SlicedResponse
from ...jobs.job import Job
from ...jobs.result_store import seq_id_of
from ...service import Service, service_of
from ..openapi import GENERATION, LOOKUP, events, operation, parameter
from ..request_model import read_request
from ..streaming import event_id, stream
from .request import GenerateRequest
from .response import finished_result, result_object
from .stream import NativeStreamWriter

router = APIRouter(tags=["native"])

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
        errors=GENERATION,
        body=GenerateRequest,
        example={"prompt": "Once upon a time", "max_tokens": 32, "stream": False},
    ),
)
async def generate(request: Request) -> Response:
    """Submit a prompt: 202 with the id to ask for, or with `"stream": true` the events at once."""
    service = service_of(request)
    body = await read_request(request, GenerateRequest)
    params = body.sampling()
    job = service.new_job(params, owner=owner_of(request))
    service.results.add(job)
    try:
        await service.submit(job, body.prompt, params, user=body.user)
    except BaseException:
        service.results.forget(job)
        raise
    return _stream_of_submitted(service, job) if body.stream else _accepted(job)


@router.get("/result/{seq_id}", **operation({200: _RESULT}, errors=LOOKUP, parameters=[SEQ_ID, WAIT]))
async def result(request: Request) -> Response:
    """The result so far; `?wait=30` answers when it is complete or after so many seconds."""
    wait_s = _wait_s(request)
    job = _job(request)
    if wait_s and not job.finished:
        await unless_disconnected(request.receive, job.wait(wait_s))
    if job.finished:
        job.was_read.set()
    json = service_of(request).json
    if job.finished and json.may_share:
        return SlicedResponse.of(await finished_result(job, json))
    return SlicedResponse(json.slices(result_object(job)))


@router.get(
    "/result/{seq_id}/stream",
    **operation({200: _STREAM}, errors=LOOKUP, parameters=[SEQ_ID, STARTING_AFTER, LAST_EVENT_ID]),
)
async def result_stream(request: Request) -> Response:
    """The events from the beginning, or after Last-Event-ID or `?starting_after=N`. A disconnect cancels nothing."""
    after = _starting_after(request)
    job = _job(request)
    writer = NativeStreamWriter(job, service_of(request).json, first_id=after + 1)
    return stream([job], writer, first_id=after + 1)


@router.delete(
    "/result/{seq_id}", **operation({200: "What it was before: its `status`."}, errors=LOOKUP, parameters=[SEQ_ID])
)
async def delete(request: Request) -> Response:
    """Cancel if it runs, and forget it."""
    service = service_of(request)
    job = _job(request)
    status = job.status if job.finished else "cancelled"
    service.abort(job)
    service.results.forget(job)
    return JsonResponse({"seq_id": job.seq_id, "status": status, "deleted": True})


def _job(request: Request) -> Job:
    """The job in the path, if it is the caller's. Raises ResultNotFoundError."""
    return service_of(request).results.get(seq_id_of(request.path_params["seq_id"]), owner=owner_of(request))


def _accepted(job: Job) -> Response:
    url = f"/result/{job.seq_id}"
    body = {"seq_id": job.seq_id, "status": job.status, "result_url": url, "stream_url": f"{url}/stream"}
    return JsonResponse(body, status_code=202, headers={"Location": url, "Retry-After": "1"})


def _stream_of_submitted(service: Service, job: Job) -> Response:
    return stream(
        [job],
        NativeStreamWriter(job, service.json),
        on_disconnect=lambda: service.abort(job),
        headers={"X-Seq-Id": job.seq_id, "Location": f"/result/{job.seq_id}"},
    )


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
