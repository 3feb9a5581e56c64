"""Native routes: submit, poll, stream, re-attach, cancel."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ...http.auth import owner_of
from ...http.disconnect import unless_disconnected
from ...http.errors import MovedError
from ...http.json_response import JsonResponse
from ...http.json_writer import SlicedResponse
from ...http.prefer import preferred_wait_s
from ...jobs.idempotency import IdempotencyKey
from ...jobs.job import Attachment, Job
from ...jobs.kept_request import KeptRequest
from ...jobs.result_store import seq_id_of
from ...service import Service, service_of
from ..openapi import IDEMPOTENCY_KEY, KEEPING, KEYED, LOOKUP, events, operation, parameter
from ..request_model import REPLAYED, idempotency_key, read_fields, read_request
from ..streaming import event_id, stream
from .request import GenerateRequest
from .response import finished_result, listed, result_object
from .stream import NativeStreamWriter

router = APIRouter(tags=["native"])
KIND = "generate"  # kind of kept requests

MAX_WAIT_S = 60.0
MAX_LISTED = 100
STATUSES = ("queued", "running", "completed", "failed", "cancelled")
SEQ_ID = parameter("seq_id", "The id from POST /generate; it begins with the server's `--id-tag`.", place="path")
WAIT = parameter("wait", "Seconds to wait for the complete result.", type="number", minimum=0, maximum=60)
PREFER = parameter("Prefer", "`wait=N`: wait up to N seconds for the complete result.", place="header")
STARTING_AFTER = parameter("starting_after", "Id of the reader's last event.", type="integer", minimum=0)
LAST_EVENT_ID = parameter(
    "Last-Event-ID",
    "Like `starting_after`, as browsers send it; the header wins.",
    place="header",
    type="integer",
    minimum=0,
)


_EVENTS = """id: 0
event: token
data: {"index": 0, "text": " there", "token_ids": [421]}

id: 1
event: done
data: {…the result…}
"""
_STREAM = events("`token` events, then `done` with the result, or `error`; a comment every 15 s of silence.", _EVENTS)
_ANSWERED = events(
    "With `stream` the events; with `Prefer: wait` the result, if it is complete in time.", _EVENTS, has_json=True
)
_RESULT = "The result: partial while the request runs, then unchanged while it is kept."


@router.post(
    "/generate",
    **operation(
        {202: "Accepted: poll `result_url`, or read `stream_url`.", 200: _ANSWERED},
        errors=KEEPING,
        body=GenerateRequest,
        example={"prompt": "Once upon a time", "max_tokens": 32, "stream": False},
        parameters=[IDEMPOTENCY_KEY, PREFER],
    ),
)
async def generate(request: Request) -> Response:
    """Submit a prompt: 202 with the id to poll, or with `"stream": true` the events at once."""
    service = service_of(request)
    body = await read_request(request, GenerateRequest)
    key = idempotency_key(request, body)
    if key is not None:
        body.sampling()  # a wrong field is reported before a reused key
    async with service.results.idempotent(owner_of(request), key) as earlier:
        job = earlier or await _submit(service, body, owner=owner_of(request), key=key)
    headers = REPLAYED if earlier else {}
    if job.check is not None:
        headers = {**headers, "X-Unenforced": job.check.header}
    if not body.stream:
        if wait_s := preferred_wait_s(request.headers.getlist("prefer")):
            await unless_disconnected(request.receive, job.wait(min(wait_s, MAX_WAIT_S)))
            headers = {**headers, "Preference-Applied": f"wait={wait_s:g}"}
        return await _result(service, job, headers) if wait_s and job.finished else _accepted(job, headers)
    ends_it = key is None and not body.durable
    return stream(
        [job],
        NativeStreamWriter(job, service.json),
        on_disconnect=lambda: service.abort(job) if ends_it else None,
        headers={"X-Seq-Id": job.seq_id, "Location": f"/result/{job.seq_id}", **headers},
    )


async def _submit(service: Service, body: GenerateRequest, *, owner: str, key: IdempotencyKey | None) -> Job:
    """Submit the request's job, which is kept from now on."""
    params = body.sampling()
    check = service.check_of(params)
    is_kept = body.durable or not body.stream
    service.settings.webhooks.check(body.webhook, is_kept=is_kept)
    await service.results.check_quota(owner)
    job = service.new_job(params, owner=owner, idempotency_key=key, ttl_s=body.ttl_s, check=check)
    service.results.add(job)
    try:
        stored = None if check is None else check.to_dict()
        kept = KeptRequest(
            kind=KIND, body=body.as_sent, attachment=stored, webhook=body.webhook, defaults=body.defaults
        )
        await service.submit(job, body.engine_prompt(), params, user=body.user, kept=kept if is_kept else None)
    except BaseException:
        service.abort(job)
        service.results.forget(job)
        raise
    return job


async def generate_batched(
    service: Service, fields: Mapping[str, Any], *, owner: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer like POST /generate, in the background and without keeping the result. Raises like the route."""
    body = read_fields(service, fields, GenerateRequest, defaults=defaults)
    service.settings.webhooks.check(body.webhook, is_kept=False)
    params = body.sampling()
    job = service.new_job(params, owner=owner, check=service.check_of(params))
    await service.complete([job], [body.engine_prompt()], params, user=body.user, is_background=True)
    return result_object(job)


class KeptGenerate:
    """KeptKind of POST /generate."""

    def __init__(self, read_check: Callable[[Any], Any]) -> None:
        """`read_check` makes the check of an answer again, as Service.read_check."""
        self._read_check = read_check

    def attachment(self, stored: Any) -> Attachment | None:
        """Return the check of the answer, if there is one."""
        check: Attachment | None = self._read_check(stored)
        return check

    def params(
        self, body: Mapping[str, Any], attachment: Attachment | None, defaults: Mapping[str, Any]
    ) -> SamplingParams:
        """Rebuild the sampling parameters from the stored request."""
        return GenerateRequest.read(body, defaults=defaults).sampling()

    async def renewed(self, engine: Any, settings: Any, kept: KeptRequest) -> tuple[Any, KeptRequest]:
        """Return the stored prompt, unchanged."""
        return GenerateRequest.read(kept.body).engine_prompt(), kept


@router.get("/result/{seq_id}", **operation({200: _RESULT}, errors=LOOKUP, parameters=[SEQ_ID, WAIT, PREFER]))
async def result(request: Request) -> Response:
    """The result so far. `?wait=30` answers when the result is complete or after 30 seconds."""
    wait_s = _wait_s(request) or min(preferred_wait_s(request.headers.getlist("prefer")), MAX_WAIT_S)
    job = await _job(request)
    if wait_s and not job.finished:
        await unless_disconnected(request.receive, job.wait(wait_s))
        if job.is_suspended:
            raise MovedError
    return await _result(service_of(request), job, {})


async def _result(service: Service, job: Job, headers: Mapping[str, str]) -> Response:
    if job.finished:
        job.was_read.set()
    json = service.json
    if job.finished and json.may_share:
        response = SlicedResponse.of(await finished_result(job, json))
    else:
        response = SlicedResponse(json.slices(result_object(job)))
    response.headers.update(headers)
    return response


@router.get(
    "/result/{seq_id}/stream",
    **operation({200: _STREAM}, errors=LOOKUP, parameters=[SEQ_ID, STARTING_AFTER, LAST_EVENT_ID]),
)
async def result_stream(request: Request) -> Response:
    """The events from the beginning, or after Last-Event-ID or `?starting_after=N`. A disconnect cancels nothing."""
    after = _starting_after(request)
    job = await _job(request)
    writer = NativeStreamWriter(job, service_of(request).json, first_id=after + 1)
    return stream([job], writer, first_id=after + 1)


@router.delete(
    "/result/{seq_id}", **operation({200: "The `status` before the deletion."}, errors=LOOKUP, parameters=[SEQ_ID])
)
async def delete(request: Request) -> Response:
    """Cancel the request if it runs, and delete its result."""
    service = service_of(request)
    job = await _job(request)
    status = job.status if job.finished else "cancelled"
    service.abort(job)
    await service.results.delete(job)
    return JsonResponse({"seq_id": job.seq_id, "status": status, "deleted": True})


@router.get(
    "/results",
    **operation(
        {200: "The caller's results, newest first, without their outputs."},
        errors=LOOKUP,
        parameters=[
            parameter("limit", "The most results.", type="integer", minimum=1, maximum=MAX_LISTED),
            parameter("after", "Id of the last result of the previous page."),
            parameter("status", "Only results with this status.", enum=list(STATUSES)),
        ],
    ),
)
async def results(request: Request) -> Response:
    """The caller's results, newest first."""
    store, owner, query = service_of(request).results, owner_of(request), request.query_params
    limit = _int(query.get("limit", "20"), name="limit", at_least=1, at_most=MAX_LISTED)
    status, after = query.get("status"), query.get("after")
    if status is not None and status not in STATUSES:
        raise InvalidRequestError(f"status must be one of {', '.join(STATUSES)}", param="status")
    last = None if after is None else await store.find(seq_id_of(after), owner=owner)
    jobs = await store.page(owner, after=last, limit=limit + 1, status=status)
    data = [listed(job) for job in jobs[:limit]]
    last_id = data[-1]["seq_id"] if data else None
    return JsonResponse({"object": "list", "data": data, "has_more": len(jobs) > limit, "last_id": last_id})


@router.delete("/results", **operation({200: "The number of deleted results, as `deleted`."}, errors=(*KEYED, 503)))
async def delete_results(request: Request) -> Response:
    """Cancel all of the caller's requests and delete their results."""
    service, owner = service_of(request), owner_of(request)
    service.abort(*service.results.unfinished(owner=owner))
    return JsonResponse({"deleted": len(await service.results.delete_all(owner))})


async def _job(request: Request) -> Job:
    """Find the path's job if it is the caller's. Raises ResultNotFoundError."""
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
    """Return the id of the reader's last event, -1 for none. The header is newer than the URL, so it wins."""
    for name, text in (
        ("Last-Event-ID", request.headers.get("last-event-id")),
        ("starting_after", request.query_params.get("starting_after")),
    ):
        if text:
            return event_id(text, name=name)
    return -1


def _int(text: str, *, name: str, at_least: int, at_most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and at_least <= int(text) <= at_most):
        raise InvalidRequestError(f"{name} must be an integer from {at_least} to {at_most}", param=name)
    return int(text)
