"""/v1/responses as the `openai` package speaks it, over the same jobs and the same store as the native routes.

A response that runs in the background goes on after a disconnect; any other one is cancelled.
"""

import dataclasses

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ....engine.errors import InvalidRequestError
from ...http.auth import owner_of
from ...http.disconnect import unless_disconnected
from ...http.errors import ResultNotFoundError
from ...http.json_body import read_json
from ...http.json_response import JsonResponse, PiecesResponse, dump_pieces
from ...http.openapi import path_parameter, request_body
from ...jobs.job import Job, raise_failure
from ...jobs.result_store import ID_PREFIX, seq_id_of
from ...service import Service, service_of
from ..chat_request import chat_prompt, constrained
from ..fields import event_id, take_user
from ..streaming import stream
from .request import ResponseRequest, form_of, in_response_words, refuse_foreign, take_response
from .response import ResponseLife, conversation_of, response_object
from .stream import ResponsesStreamWriter

router = APIRouter(prefix="/v1/responses", tags=["OpenAI shape"])

CANCEL_S = 10.0
RESPONSE_ID = path_parameter("response_id")


@router.post("", openapi_extra=request_body(input="Hello", max_output_tokens=32))
async def create(request: Request) -> Response:
    """Answer at once, as a stream, or in the background."""
    service = service_of(request)
    fields = await read_json(request, max_bytes=service.settings.max_body_bytes)
    service.check_model(fields.pop("model", None))
    refuse_foreign(fields)
    user = take_user(fields)
    previous_id = fields.pop("previous_response_id", None)
    earlier = [] if previous_id is None else await conversation_of(_previous(request, previous_id), service.token_text)
    with in_response_words():
        asked = take_response(fields, earlier=earlier, previous_id=previous_id)
        job = await _submitted(service, asked, owner=owner_of(request), user=user)
    if asked.stream:
        return _stream(service, job, after=-1)
    if not asked.form.is_background:
        await _wait(request, service, job)
    return await _object(service, job)


async def _submitted(service: Service, asked: ResponseRequest, *, owner: str, user: str) -> Job:
    """The job of this request, kept from now on if it is to be."""
    prompt, answer = await chat_prompt(service, asked.chat)
    params = constrained(asked.params, answer)
    job = service.new_job(params, owner=owner)
    job.attach(dataclasses.replace(asked.form, answer=answer))
    if asked.form.is_stored:
        service.results.add(job)
    try:
        await service.submit(job, prompt, params, user=user)
    except BaseException:
        service.results.forget(job)
        raise
    return job


@router.get("/{response_id}", openapi_extra=RESPONSE_ID)
async def retrieve(request: Request) -> Response:
    """The response as it stands; with `?stream=true` its events, after `starting_after` if that is given."""
    service = service_of(request)
    job = _job(request)
    if request.query_params.get("stream", "").lower() != "true":
        return await _object(service, job)
    after = request.query_params.get("starting_after")
    return _stream(service, job, after=event_id(after, name="starting_after") if after else -1, is_owned=False)


@router.post("/{response_id}/cancel", openapi_extra=RESPONSE_ID)
async def cancel(request: Request) -> Response:
    """Stop it if it runs; what there is stays."""
    service = service_of(request)
    job = _job(request)
    service.abort(job)
    await unless_disconnected(request.receive, job.wait(CANCEL_S))  # the step in flight
    return await _object(service, job)


@router.delete("/{response_id}", openapi_extra=RESPONSE_ID)
async def delete(request: Request) -> Response:
    """Stop it if it runs, and forget it."""
    service = service_of(request)
    job = _job(request)
    service.abort(job)
    service.results.forget(job)
    return JsonResponse({"id": ID_PREFIX + job.seq_id, "object": "response", "deleted": True})


def _job(request: Request) -> Job:
    seq_id = seq_id_of(request.path_params["response_id"])
    return service_of(request).results.get(seq_id, owner=owner_of(request))


def _previous(request: Request, previous_id: object) -> Job:
    if not isinstance(previous_id, str):
        raise InvalidRequestError("previous_response_id must be a string", param="previous_response_id")
    try:
        return service_of(request).results.get(seq_id_of(previous_id), owner=owner_of(request))
    except ResultNotFoundError as exc:
        raise InvalidRequestError(
            f"previous_response_id: {exc}", param="previous_response_id", code="previous_response_not_found"
        ) from exc


async def _wait(request: Request, service: Service, job: Job) -> None:
    """Until the job has ended; a disconnect ends it. Raises what made it fail."""
    try:
        await unless_disconnected(request.receive, job.ended.wait())
    except BaseException:
        service.abort(job)
        raise
    if job.status == "failed":
        raise_failure([job])


async def _object(service: Service, job: Job) -> Response:
    if job.finished:
        job.was_read.set()
    return PiecesResponse(await dump_pieces(await response_object(job, service.token_text)))


def _stream(service: Service, job: Job, *, after: int, is_owned: bool = True) -> Response:
    """The job's events; if this stream owns it, a disconnect ends a job that does not run in the background."""
    form = form_of(job)
    ends_it = is_owned and form is not None and not form.is_background
    return stream(
        [job],
        ResponsesStreamWriter(ResponseLife(job, service.token_text), after=after),
        on_disconnect=lambda: service.abort(job) if ends_it else None,
        headers={"X-Seq-Id": job.seq_id},
    )
