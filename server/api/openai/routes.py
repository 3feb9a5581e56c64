"""The OpenAI-compatible routes: models, completions, chat completions. Underneath, the same jobs as the native routes.

A disconnect ends the request, streamed or not; these jobs are not kept for later.
"""

import asyncio
import secrets
import time
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ....engine.errors import InvalidRequestError
from ....engine.sampling_params import SamplingParams
from ...http.auth import owner_of
from ...http.disconnect import unless_disconnected
from ...http.json_response import JsonResponse
from ...http.json_writer import SlicedResponse
from ...jobs.job import Job, Signal, raise_failure
from ...service import Service, service_of
from ..answer_format import chat_prompt, constrained, rendered
from ..openapi import GENERATION, KEYED, LOOKUP, events, operation, parameter
from ..request_model import read_request
from ..streaming import stream
from .chat_response import ChatResponseBuilder
from .completion_response import CompletionResponseBuilder
from .request import ChatCompletionRequest, CompletionRequest, OpenAIRequest
from .response import Head, ResponseBuilder
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
    service = service_of(request)
    body = await read_request(request, CompletionRequest)
    params, echo = body.params(), body.echoed()
    builder = CompletionResponseBuilder(
        _head(service, "cmpl-"),
        service.token_text,
        include_usage=body.include_usage,
        echo=echo,
        prompt_text=service.prompt_text,
    )
    return await _answer(request, body, builder, body.prompt, params, keeps_prompt=echo.is_wanted)


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
    service = service_of(request)
    body = await read_request(request, ChatCompletionRequest)
    chat, params = body.chat(), body.params()
    text, answer = await chat_prompt(service, chat)
    builder = ChatResponseBuilder(
        _head(service, "chatcmpl-"), service.token_text, include_usage=body.include_usage, answer=answer
    )
    return await _answer(request, body, builder, [rendered(text)], constrained(params, answer))


async def _answer(
    request: Request,
    body: OpenAIRequest,
    builder: ResponseBuilder,
    prompts: Sequence[Any],
    params: SamplingParams,
    *,
    keeps_prompt: bool = False,
) -> Response:
    service = service_of(request)
    if body.stream and params.prompt_logprobs is not None and not keeps_prompt:
        raise InvalidRequestError("prompt_logprobs goes with stream false only", param="prompt_logprobs")
    changed = Signal()
    owner = owner_of(request)
    jobs = [service.new_job(params, owner=owner, changed=changed, keeps_prompt=keeps_prompt) for _ in prompts]
    try:
        for job, prompt in zip(jobs, prompts, strict=True):
            await service.submit(job, prompt, params, user=body.user)
        if body.stream:
            writer = OpenAIStreamWriter(builder, jobs, include_usage=body.include_usage)
            return stream(jobs, writer, on_disconnect=lambda: service.abort(*jobs))
        await unless_disconnected(request.receive, _all_ended(jobs))
    except BaseException:  # refused half-way, or a disconnect
        service.abort(*jobs)
        raise
    raise_failure(jobs)
    return SlicedResponse.of(await service.json.write(builder.answer(jobs)))


async def _all_ended(jobs: Sequence[Job]) -> None:
    await asyncio.gather(*(job.ended.wait() for job in jobs))


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
