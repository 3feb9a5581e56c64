"""/v1/responses for the `openai` package, over the same jobs and the same store as the native routes.

A response in the background continues after a disconnect; any other response is cancelled.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from pydantic import BeforeValidator
from starlette.requests import Request
from starlette.responses import Response

from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ....engine.language.chat.messages import Message
from ...api.chat.answer_check import AnswerCheck
from ...api.chat.answer_format import constrained, rendered
from ...api.chat.model_text import ModelText
from ...api.chat.timed_route import QuotaRoute
from ...api.chat.token_limit import announce_cut, cut_to_fit
from ...api.listing import Page, list_object, page_of
from ...api.openapi import GENERATION, KEEPING, LOOKUP, errors, events
from ...api.parameters import REPLAYED, EventId, IdempotencyHeader, event_id, key_of
from ...api.request_model import read_fields
from ...api.streaming import stream as stream_of
from ...http.auth import owner_of
from ...http.disconnect import unless_disconnected
from ...http.errors import MovedError, ResultNotFoundError
from ...http.json_response import JsonResponse
from ...http.json_writer import SlicedResponse
from ...jobs.idempotency import IdempotencyKey
from ...jobs.job import Attachment, Job, raise_failure
from ...jobs.result_store import ID_PREFIX, seq_id_of
from ...jobs.saved_request import SavedRequest
from ...server_settings import ServerSettings
from ...service import Service, service_of
from .input_items import input_items, page_of_items
from .request import ResponsesRequest, StoredRequest, stored_request
from .response import ResponseLife, ResponsesStreamWriter, conversation_of, response_object
from .truncation import response_prompt

router = APIRouter(prefix="/v1/responses", tags=["OpenAI"], route_class=QuotaRoute)
KIND = "response"  # kind of kept requests
CANCEL_S = 10.0
IsTrue = Annotated[bool, BeforeValidator(lambda text: text.lower() == "true")]  # any other text is false
ResponseId = Annotated[str, Path(description="Id of the response.")]
_EVENTS = """event: response.output_text.delta
data: {"type": "response.output_text.delta", "item_id": "msg_…", "delta": "Hi", …, "sequence_number": 4}
"""
_STREAMED = events("The response, or with `stream` its events.", _EVENTS, has_json=True)


@router.post("", responses=_STREAMED | errors(*KEEPING))
async def create(
    request: Request,
    body: Annotated[ResponsesRequest, Depends(ResponsesRequest.from_request)],
    idempotency_key: IdempotencyHeader = None,
) -> Response:
    """Answer at once, as a stream, or in the background."""
    service = service_of(request)
    key = key_of(request, idempotency_key, body) if body.store else None
    if key is not None:
        body.params(is_forced=True)  # a wrong field is reported before a reused key
    async with service.results.idempotent(owner_of(request), key) as earlier:
        job = earlier or await _submit(service, body, owner=owner_of(request), key=key)
    if body.stream:
        response = _stream(service, job, after=-1, is_owned=key is None)
    else:
        if not body.background:
            await _wait(request, service, job, is_owned=key is None)
        response = await _object(service, job)
    response.headers.update(REPLAYED if earlier else {})
    limit = body.max_output_tokens
    announce_cut(request, [job], limit=limit if type(limit) is int else None)
    if job.check is not None:
        response.headers["X-Unenforced"] = job.check.header
    return response


@router.post(
    "/input_tokens", response_description="The number of tokens, as `input_tokens`.", responses=errors(*GENERATION)
)
async def count_input_tokens(
    request: Request, body: Annotated[ResponsesRequest, Depends(ResponsesRequest.from_request)]
) -> Response:
    """Count the tokens of an input, with the conversation that it continues, without answering it."""
    service = service_of(request)
    body.params(is_forced=True)  # a wrong field is refused like on POST /v1/responses
    earlier = await _earlier(service, body, owner=owner_of(request))
    text, _ = await response_prompt(service.engine, service.settings, body, body.messages(earlier))
    tokens = await ModelText(service).encode(text, add_special_tokens=False)
    return JsonResponse({"object": "response.input_tokens", "input_tokens": len(tokens)})


async def respond_batched(
    service: Service, fields: Mapping[str, Any], *, owner: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer like POST /v1/responses, in the background and without keeping the response. Raises like the route."""
    body = read_fields(service, fields, ResponsesRequest, defaults=defaults)
    new = await _new(service, body, owner=owner)
    await service.complete([new.job], [new.prompt], new.params, user=new.body.user, is_background=True)
    return await response_object(new.job, ModelText(service).shown)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _New:
    """Job that is not submitted yet, with its prompt and parameters."""

    body: ResponsesRequest
    job: Job
    prompt: Any
    params: SamplingParams
    attachment: StoredRequest


async def _new(service: Service, body: ResponsesRequest, *, owner: str, key: IdempotencyKey | None = None) -> _New:
    earlier = await _earlier(service, body, owner=owner)
    messages = body.messages(earlier)
    text, answer = await response_prompt(service.engine, service.settings, body, messages)
    params = cut_to_fit(body.params(is_forced=answer.is_forced), is_strict=service.settings.strict_fields)
    check = await AnswerCheck.of(params, answer)
    job = service.new_job(params, owner=owner, idempotency_key=key)
    stored = body.stored(messages, params)
    attachment = dataclasses.replace(stored, answer=answer, schema=check and check.schema, check=check)
    job.attach(attachment)
    return _New(body=body, job=job, prompt=rendered(text), params=constrained(params, answer), attachment=attachment)


async def _earlier(service: Service, body: ResponsesRequest, *, owner: str) -> list[Message]:
    """Return the conversation that the input continues. Raises InvalidRequestError, ResultNotFoundError."""
    body.messages([])  # a wrong input is reported first
    _ = service.tokenizer  # raises if the model has no tokenizer
    previous_id = body.previous_response_id
    return [] if previous_id is None else await _conversation(service, previous_id, owner=owner)


async def _submit(service: Service, body: ResponsesRequest, *, owner: str, key: IdempotencyKey | None) -> Job:
    """Submit the request's job, which is kept from now on if `store` is true."""
    new = await _new(service, body, owner=owner, key=key)
    job = new.job
    if body.store:
        await service.results.check_quota(owner)
        service.results.add(job)
    try:
        stored = new.attachment.to_dict()
        kept = SavedRequest(kind=KIND, body=body.as_sent, attachment=stored, defaults=body.defaults)
        await service.submit(job, new.prompt, new.params, user=body.user, kept=kept if body.store else None)
    except BaseException:
        service.abort(job)
        service.results.forget(job)
        raise
    return job


class SavedResponse:
    """SavedKind of /v1/responses."""

    def attachment(self, stored: Mapping[str, Any]) -> StoredRequest:
        """Rebuild the attachment from its stored form."""
        return StoredRequest.read(stored)

    def params(
        self, body: Mapping[str, Any], attachment: Attachment | None, defaults: Mapping[str, Any]
    ) -> SamplingParams:
        """Rebuild the sampling parameters from the stored request."""
        assert isinstance(attachment, StoredRequest)
        params = ResponsesRequest.read(body, defaults=defaults).params(is_forced=attachment.answer.is_forced)
        return constrained(cut_to_fit(params), attachment.answer)  # a strict server has refused what does not fit

    async def renewed(self, engine: Any, settings: ServerSettings, kept: SavedRequest) -> tuple[Any, SavedRequest]:
        """Render the conversation again in this model's template."""
        attachment = self.attachment(kept.attachment)
        body = ResponsesRequest.read(kept.body)
        text, answer = await response_prompt(engine, settings, body, attachment.messages)
        stored = dataclasses.replace(attachment, answer=answer).to_dict()
        return rendered(text), dataclasses.replace(kept, attachment=stored)


KEPT_RESPONSE = SavedResponse()


@router.get("/{response_id}", responses=_STREAMED | errors(*LOOKUP))
async def retrieve(
    request: Request,
    response_id: ResponseId,
    stream: Annotated[IsTrue, Query(description="True for events.")] = False,
    starting_after: Annotated[EventId, Query(description="Number of the reader's last event.")] = None,
) -> Response:
    """The response as it is now, or with `?stream=true` its events, after `starting_after` if given."""
    service = service_of(request)
    job = await _job(request, response_id)
    if not stream:
        return await _object(service, job)
    after = event_id(starting_after, name="starting_after") if starting_after else -1
    return _stream(service, job, after=after, is_owned=False)


@router.get("/{response_id}/input_items", response_description="A page of items.", responses=errors(*LOOKUP))
async def list_input_items(
    request: Request, response_id: ResponseId, page: Annotated[Page, Depends(page_of(default=20, most=100))]
) -> Response:
    """The response's input and the conversation that it continues, newest first."""
    job = await _job(request, response_id)
    stored = stored_request(job) or StoredRequest()
    items = input_items(stored.messages, response_id=job.seq_id)
    return JsonResponse(list_object(page_of_items(items, page), page))


@router.post("/{response_id}/cancel", response_description="The stopped response.", responses=errors(*LOOKUP))
async def cancel(request: Request, response_id: ResponseId) -> Response:
    """Stop the response if it runs. Its output so far is kept."""
    service = service_of(request)
    job = await _job(request, response_id)
    service.abort(job)
    await unless_disconnected(request.receive, job.wait(CANCEL_S))  # for the step in flight
    return await _object(service, job)


@router.delete("/{response_id}", response_description="Deleted.", responses=errors(*LOOKUP))
async def delete(request: Request, response_id: ResponseId) -> Response:
    """Stop the response if it runs, and delete it."""
    service = service_of(request)
    job = await _job(request, response_id)
    service.abort(job)
    await service.results.delete(job)
    return JsonResponse({"id": ID_PREFIX + job.seq_id, "object": "response", "deleted": True})


async def _job(request: Request, response_id: str) -> Job:
    return await service_of(request).results.find(seq_id_of(response_id), owner=owner_of(request))


async def _conversation(service: Service, previous_id: str, *, owner: str) -> list[Message]:
    """Return the conversation up to the end of an earlier response. Raises InvalidRequestError."""
    try:
        job = await service.results.find(seq_id_of(previous_id), owner=owner)
    except ResultNotFoundError as exc:
        raise InvalidRequestError(
            f"previous_response_id: {exc}", param="previous_response_id", code="previous_response_not_found"
        ) from exc
    return await conversation_of(job, ModelText(service).shown)


async def _wait(request: Request, service: Service, job: Job, *, is_owned: bool) -> None:
    """Wait until the job has ended. A disconnect aborts a job that this request owns. Raises the job's failure."""
    try:
        await unless_disconnected(request.receive, job.ended.wait())
    except BaseException:
        if is_owned:
            service.abort(job)
        raise
    if job.is_suspended:
        raise MovedError
    if job.status == "failed":
        raise_failure([job])


async def _object(service: Service, job: Job) -> Response:
    if job.finished:
        job.was_read.set()
    json = service.json

    async def write() -> Sequence[bytes]:
        return await json.write(await response_object(job, ModelText(service).shown))

    if job.finished and json.may_share:
        return SlicedResponse.of(await json.write_once(ID_PREFIX + job.seq_id, write))
    return SlicedResponse(json.slices(await response_object(job, ModelText(service).shown)))


def _stream(service: Service, job: Job, *, after: int, is_owned: bool = True) -> Response:
    """Stream the job's events. A disconnect aborts the job if this stream owns it and it is not in the background."""
    stored = stored_request(job)
    ends_it = is_owned and stored is not None and not stored.is_background
    return stream_of(
        [job],
        ResponsesStreamWriter(ResponseLife(job, ModelText(service).shown), after=after),
        on_disconnect=lambda: service.abort(job) if ends_it else None,
        headers={"X-Seq-Id": job.seq_id},
    )
