"""OpenAI-compatible routes: models, completions, chat completions, over the same jobs as the native routes.

A disconnect aborts the request, streamed or not; only chats' streams with `store` are kept.
"""

import functools
import hashlib
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ... import package_version
from ...api.chat.answer_check import AnswerCheck
from ...api.chat.answer_format import AnswerFormat
from ...api.chat.fill_in_middle import FillIn, fill_in
from ...api.chat.generation import Generation, chat_generation, streamed
from ...api.chat.model_text import ModelText, ShownToken, TokenText
from ...api.chat.timed_route import TimedRoute
from ...api.chat.token_limit import announce_cut, cut_to_fit
from ...api.openapi import GENERATION, KEYED, LOOKUP, errors, events
from ...api.request_model import read_fields
from ...api.streaming import stream as stream_of
from ...http.auth import owner_of
from ...http.disconnect import unless_disconnected
from ...http.errors import ResultNotFoundError
from ...http.json_response import JsonResponse
from ...http.json_writer import SlicedResponse
from ...jobs.job import Job, raise_failure
from ...jobs.result_store import seq_id_of
from ...service import Service, service_of
from .chat_response import ChatResponseBuilder
from .completion_response import CompletionResponseBuilder
from .model_list import described, is_anthropic, page_of_models
from .request import ChatCompletionRequest, CompletionRequest, OpenAIRequest, Shown
from .response import Head, ResponseBuilder
from .stream import OpenAIStreamWriter

router = APIRouter(tags=["OpenAI"], route_class=TimedRoute)
_CHAT = "chatcmpl-"  # before the ids of chats


@router.get("/models", include_in_schema=False)
@router.get("/v1/models", response_description="A list with the model, once per name.", responses=errors(*KEYED, 503))
async def models(request: Request) -> Response:
    """The served model, under each of its names, and its adapters, in the form of the API that the headers name."""
    service = service_of(request)
    names = (*service.settings.listed_model_names, *(adapter.name for adapter in service.adapters))
    data = [described(request, name) for name in names]
    if is_anthropic(request):
        return JsonResponse(page_of_models(data))
    return JsonResponse({"object": "list", "data": [*data, *_models_of_parts(service)]})


@router.get("/models/{name:path}", include_in_schema=False)
@router.get("/v1/models/{name:path}", response_description="The model.", responses=errors(*LOOKUP))
async def model(request: Request, name: Annotated[str, Path(description="The served model's name.")]) -> Response:
    """Describe the model by name; 404 for any other name."""
    service = service_of(request)
    for entry in _models_of_parts(service):
        if entry["id"] == name:
            return JsonResponse(entry)
    service.check_model(name)
    return JsonResponse(described(request, name))


def _models_of_parts(service: Service) -> list[Mapping[str, Any]]:
    return [entry for part in service.extensions.parts for entry in part.models()]


_CHUNKS = """data: {"id": "…", "object": "…", "created": 1, "model": "…", "choices": [{"index": 0, …}]}

data: [DONE]
"""
_STREAMED = events("The answer, or with `stream` its chunks as events.", _CHUNKS, has_json=True)


@router.post("/completions", include_in_schema=False)
@router.post("/v1/completions", responses=_STREAMED | errors(*GENERATION))
async def completions(
    request: Request, body: Annotated[CompletionRequest, Depends(CompletionRequest.from_request)]
) -> Response:
    """Continue one or more prompts."""
    answer = await _completion(service_of(request), body)
    return await answer.response(request)


@router.post("/chat/completions", include_in_schema=False)
@router.post("/v1/chat/completions", responses=_STREAMED | errors(*GENERATION))
async def chat_completions(
    request: Request, body: Annotated[ChatCompletionRequest, Depends(ChatCompletionRequest.from_request)]
) -> Response:
    """Answer a conversation."""
    answer = await _chat_completion(service_of(request), body)
    return await answer.response(request)


@router.get("/v1/chat/completions/{completion_id}", responses=_STREAMED | errors(*LOOKUP))
async def stored_chat(
    request: Request,
    completion_id: Annotated[str, Path(description="The answer's id, or X-Seq-Id of its stream.")],
    stream: Annotated[bool, Query(description="True for the chunks from the first on.")] = False,
) -> Response:
    """The answer of a stream with `store`, when it is complete. A disconnect cancels nothing."""
    service = service_of(request)
    job = await service.results.find(seq_id_of(completion_id.removeprefix(_CHAT)), owner=owner_of(request))
    if not isinstance(stored := job.attachment, _StoredChat):
        raise ResultNotFoundError
    if stream:
        return stream_of([job], stored.writer([job]), headers={"X-Seq-Id": job.seq_id})
    await unless_disconnected(request.receive, job.ended.wait())
    raise_failure([job])
    return SlicedResponse.of(await service.json.write(stored.builder(job).answer([job])))


async def complete_batched(
    service: Service, fields: Mapping[str, Any], *, owner: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer like POST /v1/completions, in the background. Raises like the route."""
    answer = await _completion(service, read_fields(service, fields, CompletionRequest, defaults=defaults))
    return await answer.whole(service, owner=owner)


async def chat_batched(
    service: Service, fields: Mapping[str, Any], *, owner: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer like POST /v1/chat/completions, in the background. Raises like the route."""
    answer = await _chat_completion(service, read_fields(service, fields, ChatCompletionRequest, defaults=defaults))
    return await answer.whole(service, owner=owner)


@dataclass(frozen=True, kw_only=True)
class _StoredChat:
    """Attachment of a kept chat: makes the builder that each of its readers needs."""

    head: Head
    build: Callable[[Head], ChatResponseBuilder]
    shown: Shown
    check: AnswerCheck | None
    num_bytes: int = 1000  # about

    def builder(self, job: Job) -> ChatResponseBuilder:
        """Begin the answer, under the job's id."""
        return self.build(replace(self.head, id=_CHAT + job.seq_id))

    def writer(self, jobs: Sequence[Job]) -> OpenAIStreamWriter:
        """Begin a stream of the answer."""
        return OpenAIStreamWriter(self.builder(jobs[0]), jobs, shown=self.shown)


@dataclass(frozen=True, kw_only=True)
class _Answer:
    """Work of one request, and the builder of its answer."""

    body: OpenAIRequest
    builder: ResponseBuilder
    generation: Generation
    echoes: bool = False  # True if the prompt precedes the answer

    async def whole(self, service: Service, *, owner: str) -> dict[str, Any]:
        """Answer a line of a batch once it is complete, for `json_slices`."""
        return self.builder.answer(await self.generation.complete(service, owner=owner, is_background=True))

    async def response(self, request: Request) -> Response:
        """Build the answer, whole or streamed."""
        if not self.body.stream:
            jobs = await self.generation.answered(request)
            self._announce_cut(request, jobs)
            return SlicedResponse.of(await service_of(request).json.write(self.builder.answer(jobs)))
        if self.generation.params.prompt_logprobs is not None and not self.echoes:
            raise InvalidRequestError("prompt_logprobs goes with stream false only", param="prompt_logprobs")
        jobs = await self.generation.begin(request)
        self._announce_cut(request, jobs)
        stored = self.generation.stored
        writer = OpenAIStreamWriter(self.builder, jobs, shown=self.body.shown)
        return streamed(request, jobs, stored.writer(jobs) if isinstance(stored, _StoredChat) else writer)

    def _announce_cut(self, request: Request, jobs: Sequence[Job]) -> None:
        announce_cut(request, jobs, limit=self.generation.params.default_max_tokens)


async def _completion(service: Service, body: CompletionRequest) -> _Answer:
    params, echo = cut_to_fit(body.params(), is_strict=service.settings.strict_fields), body.echoed()
    builder = CompletionResponseBuilder(
        _head(service, "cmpl-", params),
        _token_text(service, body),
        shown=body.shown,
        echo=echo,
        prompt_text=ModelText(service).prompt,
    )
    prompts = body.prompts()
    if body.suffix:
        fills = [await _filled(service, prompt, body.suffix) for prompt in body.prompt]
        prompts = [fill.token_ids for fill in fills]
        params = replace(params, stop_token_ids=(*params.stop_token_ids, *fills[0].stop_token_ids))
    generation = Generation(
        prompts=prompts,
        params=params,
        user=body.user,
        keeps_prompt=echo.is_wanted or body.return_token_ids,
        check=await AnswerCheck.of(params, AnswerFormat()),
    )
    return _Answer(body=body, builder=builder, generation=generation, echoes=echo.is_wanted)


async def _filled(service: Service, prompt: object, suffix: str) -> FillIn:
    if not isinstance(prompt, str):
        raise InvalidRequestError("suffix goes with a prompt that is text", param="suffix")
    return await fill_in(service, prompt, suffix, param="suffix")


async def _chat_completion(service: Service, body: ChatCompletionRequest) -> _Answer:
    chat = body.chat()
    params = cut_to_fit(body.params(is_forced=chat.choice.is_forced), is_strict=service.settings.strict_fields)
    generation, answer = await chat_generation(
        service,
        chat,
        params,
        user=body.user,
        keeps_prompt=body.return_token_ids,
        add_special_tokens=bool(body.add_special_tokens),
        prompt_token_ids=body.prompt_token_ids,
    )
    head = _head(service, _CHAT, params)
    build = functools.partial(
        ChatResponseBuilder,
        token_text=_token_text(service, body),
        own_text=ModelText(service).shown,
        shown=body.shown,
        answer=answer,
    )
    if body.store and body.stream:
        stored = _StoredChat(head=head, build=build, shown=body.shown, check=generation.check)
        generation = replace(generation, stored=stored)
    return _Answer(body=body, builder=build(head), generation=generation)


def _token_text(service: Service, body: OpenAIRequest) -> TokenText:
    """Return the function that shows tokens in logprobs."""
    return _by_id if body.return_tokens_as_token_ids else ModelText(service).shown


def _by_id(token_id: int) -> ShownToken:
    text = f"token_id:{token_id}"
    return ShownToken(text, text.encode())


def _head(service: Service, prefix: str, params: SamplingParams) -> Head:
    tagged = prefix + service.settings.id_tag + secrets.token_hex(16)
    return Head(
        id=tagged,
        model=params.adapter or service.settings.model_name,
        created=int(time.time()),
        fingerprint=_fingerprint(service, params.adapter),
    )


def _fingerprint(service: Service, adapter: str | None) -> str:
    """Name the version, the model and the order of sums: a seed gives equal answers with equal ones, if exact."""
    engine, config = service.engine, service.engine.config
    slices = config.tensor_parallel_slices or config.tensor_parallel_size
    order = (config.device, slices, config.device == "cuda" and config.exact)
    about = repr((package_version(), engine.fingerprint_of(adapter), *order))
    kind = "exact" if engine.loaded.inexact is None else "inexact"
    return f"fp_{hashlib.sha256(about.encode()).hexdigest()[:10]}_{kind}"
