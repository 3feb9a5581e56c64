"""Native routes: submit, poll, stream, re-attach, cancel."""

from collections.abc import Mapping
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from ...http.auth import owner_of
from ...http.disconnect import unless_disconnected
from ...http.errors import MovedError
from ...http.json_response import JsonResponse
from ...http.json_writer import SlicedResponse
from ...jobs.idempotency import IdempotencyKey
from ...jobs.job import Job
from ...jobs.result_store import seq_id_of
from ...jobs.saved_request import SavedRequest
from ...service import Service, service_of
from ..openapi import KEEPING, KEYED, LOOKUP, errors, events
from ..parameters import REPLAYED, IdempotencyHeader, key_of
from ..streaming import stream
from .request import (
    KIND,
    MAX_WAIT_S,
    After,
    GenerateRequest,
    LastEventId,
    Limit,
    Prefer,
    SeqId,
    StartingAfter,
    Status,
    Wait,
    last_event,
    preferred_wait_s,
)
from .response import NativeStreamWriter, finished_result, listed, result_object

router = APIRouter(tags=["native"])
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
    status_code=202,
    response_description="Accepted: poll `result_url`, or read `stream_url`.",
    responses=_ANSWERED | errors(*KEEPING),
)
async def generate(
    request: Request,
    body: Annotated[GenerateRequest, Depends(GenerateRequest.from_request)],
    idempotency_key: IdempotencyHeader = None,
    prefer: Prefer = None,
) -> Response:
    """Submit a prompt: 202 with the id to poll, or with `"stream": true` the events at once."""
    service, owner = service_of(request), owner_of(request)
    key = key_of(request, idempotency_key, body)
    if key is not None:
        body.sampling()  # a wrong field is reported before a reused key
    async with service.results.idempotent(owner, key) as earlier:
        job = earlier or await _submit(service, body, owner=owner, key=key)
    headers = REPLAYED if earlier else {}
    if job.check is not None:
        headers = {**headers, "X-Unenforced": job.check.header}
    if not body.stream:
        if wait_s := preferred_wait_s(prefer):
            await unless_disconnected(request.receive, job.wait(min(wait_s, MAX_WAIT_S)))
            headers = {**headers, "Preference-Applied": f"wait={wait_s:g}"}
        return await _result(service, job, headers) if wait_s and job.finished else _accepted(service, job, headers)
    ends_it = key is None and not body.durable
    return stream(
        [job],
        NativeStreamWriter(job, service.json),
        on_disconnect=lambda: service.abort(job) if ends_it else None,
        headers={"X-Seq-Id": job.seq_id, "Location": _url(service, job), **headers},
    )


async def _submit(service: Service, body: GenerateRequest, *, owner: str, key: IdempotencyKey | None) -> Job:
    """Submit the request's job, which is kept from now on."""
    params = body.sampling()
    check = await service.check_of(params)
    is_kept = body.durable or not body.stream
    await service.results.check_quota(owner)
    job = service.new_job(
        params, owner=owner, idempotency_key=key, ttl_s=body.ttl_s, check=check, keeps_prompt=body.return_token_ids
    )
    service.results.add(job)
    try:
        stored = None if check is None else check.to_dict()
        kept = SavedRequest(kind=KIND, body=body.as_sent, attachment=stored, defaults=body.defaults)
        await service.submit(job, body.engine_prompt(), params, user=body.user, kept=kept if is_kept else None)
    except BaseException:
        service.abort(job)
        service.results.forget(job)
        raise
    return job


@router.get("/result/{seq_id}", response_description=_RESULT, responses=errors(*LOOKUP))
async def result(request: Request, seq_id: SeqId, wait: Wait = 0, prefer: Prefer = None) -> Response:
    """The result so far. `?wait=30` answers when the result is complete or after 30 seconds."""
    wait_s = wait or min(preferred_wait_s(prefer), MAX_WAIT_S)
    job = await _job(request, seq_id)
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


@router.get("/result/{seq_id}/stream", responses=_STREAM | errors(*LOOKUP))
async def result_stream(
    request: Request, seq_id: SeqId, starting_after: StartingAfter = None, last_event_id: LastEventId = None
) -> Response:
    """The events from the beginning, or after Last-Event-ID or `?starting_after=N`. A disconnect cancels nothing."""
    after = last_event(last_event_id, starting_after)
    job = await _job(request, seq_id)
    writer = NativeStreamWriter(job, service_of(request).json, first_id=after + 1)
    return stream([job], writer, first_id=after + 1)


@router.delete("/result/{seq_id}", response_description="The `status` before the deletion.", responses=errors(*LOOKUP))
async def delete(request: Request, seq_id: SeqId) -> Response:
    """Cancel the request if it runs, and delete its result."""
    service = service_of(request)
    job = await _job(request, seq_id)
    status = job.status if job.finished else "cancelled"
    service.abort(job)
    await service.results.delete(job)
    return JsonResponse({"seq_id": job.seq_id, "status": status, "deleted": True})


@router.get(
    "/results",
    response_description="The caller's results, newest first, without their outputs.",
    responses=errors(*LOOKUP),
)
async def results(request: Request, limit: Limit = 20, after: After = None, status: Status = None) -> Response:
    """The caller's results, newest first."""
    store, owner = service_of(request).results, owner_of(request)
    last = None if after is None else await store.find(seq_id_of(after), owner=owner)
    jobs = await store.page(owner, after=last, limit=limit + 1, status=status)
    data = [listed(job) for job in jobs[:limit]]
    last_id = data[-1]["seq_id"] if data else None
    return JsonResponse({"object": "list", "data": data, "has_more": len(jobs) > limit, "last_id": last_id})


@router.delete(
    "/results", response_description="The number of deleted results, as `deleted`.", responses=errors(*KEYED, 503)
)
async def delete_results(request: Request) -> Response:
    """Cancel all of the caller's requests and delete their results."""
    service, owner = service_of(request), owner_of(request)
    service.abort(*service.results.unfinished(owner=owner))
    return JsonResponse({"deleted": len(await service.results.delete_all(owner))})


async def _job(request: Request, seq_id: str) -> Job:
    """Find the job if it is the caller's. Raises ResultNotFoundError."""
    return await service_of(request).results.find(seq_id_of(seq_id), owner=owner_of(request))


def _url(service: Service, job: Job) -> str:
    """Return the path of the job's result, as clients see it."""
    return f"{service.settings.root_path}/result/{job.seq_id}"


def _accepted(service: Service, job: Job, headers: Mapping[str, str]) -> Response:
    url = _url(service, job)
    body = {"seq_id": job.seq_id, "status": job.status, "result_url": url, "stream_url": f"{url}/stream"}
    return JsonResponse(body, status_code=202, headers={"Location": url, "Retry-After": "1", **headers})
