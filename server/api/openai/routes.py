"""The OpenAI-compatible routes: models, completions, chat completions. Underneath, the same jobs as the native routes.

A disconnect ends the request, streamed or not; these jobs are not kept for later.
"""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ....engine.errors import InvalidRequestError
from ....engine.sampling_params import SamplingParams
from ...http.auth import owner_of
from ...http.disconnect import unless_disconnected
from ...http.every_answer import answer_headers
from ...http.json_response import JsonResponse
from ...http.json_writer import SlicedResponse
from ...jobs.job import Job, Signal
from ...service import Service, service_of
from ..answer_check import AnswerCheck
from ..answer_format import AnswerFormat, chat_prompt, constrained, rendered
from ..openapi import GENERATION, KEYED, LOOKUP, events, operation, parameter
from ..request_model import read_fields, read_request
from ..streaming import stream
from .chat_response import ChatResponseBuilder
from .completion_response import CompletionResponseBuilder
from .request import ChatCompletionRequest, CompletionRequest, OpenAIRequest
from .response import Head, ResponseBuilder, TokenText
from .stream import OpenAIStreamWriter

router = APIRouter(prefix="/v1", tags=["OpenAI"])


@router.get("/models", **operation({200: "A list of one."}, errors=(*KEYED, 503)))
async def models(request: Request) -> Response:
    """The one model that is served."""
    return JsonResponse({"object": "list", "data": [_model(service_of(request))]})


@router.get(
    "/models/{name:path}",
    **operation(
        {200: "The model."},
        errors=LOOKUP,
        parameters=[parameter("name", "The served model's name.", place="path")],
    ),
)
async def model(request: Request) -> Response:
    """The same by name; 404 for any other name."""
    service = service_of(request)
    service.check_model(request.path_params["name"])
    return JsonResponse(_model(service))


_CHUNKS = """data: {"id": "…", "object": "…", "created": 1, "model": "…", "choices": [{"index": 0, …}]}

data: [DONE]
"""
_STREAMED = events("The answer, or with `stream` its chunks as events.", _CHUNKS, has_json=True)


@router.post(
    "/completions",
    **operation(
        {200: _STREAMED},
        errors=GENERATION,
        body=CompletionRequest,
        example={"prompt": "Once upon a time", "max_tokens": 32},
    ),
)
async def completions(request: Request) -> Response:
    """Continue one or more prompts."""
    body = await read_request(request, CompletionRequest)
    return await _answer(request, _completion(service_of(request), body))


@router.post(
    "/chat/completions",
    **operation(
        {200: _STREAMED},
        errors=GENERATION,
        body=ChatCompletionRequest,
        example={"messages": [{"role": "user", "content": "Hello"}]},
    ),
)
async def chat_completions(request: Request) -> Response:
    """Answer in a conversation."""
    body = await read_request(request, ChatCompletionRequest)
    return await _answer(request, await _chat_completion(service_of(request), body))


async def complete_batched(service: Service, fields: Mapping[str, Any], *, owner: str) -> dict[str, Any]:
    """What POST /v1/completions answers, in the background. Raises as the route."""
    generation = _completion(service, read_fields(service, fields, CompletionRequest))
    return await _whole(service, generation, owner=owner, is_background=True)


async def chat_batched(service: Service, fields: Mapping[str, Any], *, owner: str) -> dict[str, Any]:
    """What POST /v1/chat/completions answers, in the background. Raises as the route."""
    generation = await _chat_completion(service, read_fields(service, fields, ChatCompletionRequest))
    return await _whole(service, generation, owner=owner, is_background=True)


@dataclass(frozen=True, kw_only=True)
class _Generation:
    """What is to be generated for a request, and the builder of its answer."""

    body: OpenAIRequest
    builder: ResponseBuilder
    prompts: Sequence[Any]
    params: SamplingParams
    check: AnswerCheck | None
    keeps_prompt: bool = False  # for an echo

    def jobs(self, service: Service, owner: str) -> list[Job]:
        """A job for each prompt, not submitted yet."""
        changed = Signal()
        keeps_prompt = self.keeps_prompt or self.body.return_token_ids
        return [
            service.new_job(self.params, owner=owner, changed=changed, keeps_prompt=keeps_prompt, check=self.check)
            for _ in self.prompts
        ]


def _completion(service: Service, body: CompletionRequest) -> _Generation:
    params, echo = body.params(), body.echoed()
    builder = CompletionResponseBuilder(
        _head(service, "cmpl-"),
        _token_text(service, body),
        shown=body.shown,
        echo=echo,
        prompt_text=service.prompt_text,
    )
    return _Generation(
        body=body,
        builder=builder,
        prompts=body.prompts(),
        params=params,
        check=AnswerCheck.of(params, AnswerFormat()),
        keeps_prompt=echo.is_wanted,
    )


async def _chat_completion(service: Service, body: ChatCompletionRequest) -> _Generation:
    chat, params = body.chat(), body.params()
    text, answer = await chat_prompt(service, chat)
    token_text = _token_text(service, body)
    builder = ChatResponseBuilder(_head(service, "chatcmpl-"), token_text, shown=body.shown, answer=answer)
    return _Generation(
        body=body,
        builder=builder,
        prompts=[text if body.add_special_tokens else rendered(text)],
        params=constrained(params, answer),
        check=AnswerCheck.of(params, answer),
    )


async def _answer(request: Request, generation: _Generation) -> Response:
    service, owner = service_of(request), owner_of(request)
    if generation.check is not None:
        answer_headers(request)["X-Unenforced"] = generation.check.header
    if not generation.body.stream:
        whole = _whole(service, generation, owner=owner)
        return SlicedResponse.of(await service.json.write(await unless_disconnected(request.receive, whole)))
    params = generation.params
    if params.prompt_logprobs is not None and not generation.keeps_prompt:
        raise InvalidRequestError("prompt_logprobs goes with stream false only", param="prompt_logprobs")
    jobs = generation.jobs(service, owner)
    try:
        for job, prompt in zip(jobs, generation.prompts, strict=True):
            await service.submit(job, prompt, params, user=generation.body.user)
    except BaseException:  # refused half-way
        service.abort(*jobs)
        raise
    writer = OpenAIStreamWriter(generation.builder, jobs, shown=generation.body.shown)
    return stream(jobs, writer, on_disconnect=lambda: service.abort(*jobs))


async def _whole(
    service: Service, generation: _Generation, *, owner: str, is_background: bool = False
) -> dict[str, Any]:
    """The answer, once it is complete. For `JsonWriter`."""
    jobs, user = generation.jobs(service, owner), generation.body.user
    await service.complete(jobs, generation.prompts, generation.params, user=user, is_background=is_background)
    return generation.builder.answer(jobs)


def _token_text(service: Service, body: OpenAIRequest) -> TokenText:
    """How tokens of logprobs are shown."""
    return "token_id:{}".format if body.return_tokens_as_token_ids else service.token_text


def _head(service: Service, prefix: str) -> Head:
    return Head(id=prefix + secrets.token_hex(16), model=service.settings.model_name, created=int(time.time()))


def _model(service: Service) -> dict[str, Any]:
    return {
        "id": service.settings.model_name,
        "object": "model",
        "created": int(service.start_time),
        "owned_by": "splitfuse-demo" if service.settings.is_demo else "splitfuse",
        "max_model_len": service.engine.max_model_len,
    }
