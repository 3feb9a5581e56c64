"""The OpenAI-shaped routes: models, completions, chat completions. Underneath, the same jobs as the native routes.

The client's hang-up ends its request, streamed or not; these jobs are not kept for later.
"""

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ....engine.errors import InvalidRequestError
from ....engine.outputs import OutputDelta
from ....engine.sampling_params import SamplingParams
from ...http.auth import owner_of
from ...http.disconnect import unless_hung_up
from ...http.json_body import read_json
from ...http.json_response import JsonResponse, PiecesResponse, dump_pieces
from ...http.openapi import path_parameter, request_body
from ...http.sse import DONE, MAX_BATCH, PING, PING_S, EventStream, data_frame, openai_error_frame
from ...jobs.job import Job, Signal
from ...service import Service, service_of
from ..chat_request import chat_prompt, constrained, take_chat
from ..fields import take_prompts, take_user
from .chat_response import ChatShape
from .completion_response import CompletionShape
from .request import StreamOptions, chat_params, completion_params, in_chat_words, take_echo, take_stream_options
from .response import Head, Shape

router = APIRouter(prefix="/v1", tags=["OpenAI shape"])


@router.get("/models")
async def models(request: Request) -> Response:
    """The one model that is served."""
    return JsonResponse({"object": "list", "data": [_model(service_of(request))]})


@router.get("/models/{name:path}", openapi_extra=path_parameter("name"))
async def model(request: Request) -> Response:
    """The same by name; 404 for any other name."""
    service = service_of(request)
    service.check_model(request.path_params["name"])
    return JsonResponse(_model(service))


@router.post("/completions", openapi_extra=request_body(prompt="Once upon a time", max_tokens=32))
async def completions(request: Request) -> Response:
    """Continue one or more prompts."""
    service = service_of(request)
    fields = await read_json(request, max_bytes=service.settings.max_body_bytes)
    service.check_model(fields.pop("model", None))
    options = take_stream_options(fields)
    user = take_user(fields)
    prompts = take_prompts(fields)
    echo = take_echo(fields)
    params = completion_params(fields)
    shape = CompletionShape(
        _head(service, "cmpl-"),
        service.token_text,
        include_usage=options.include_usage,
        echo=echo,
        prompt_text=service.prompt_text,
    )
    return await _answer(request, shape, prompts, params, options, user=user, keeps_prompt=echo.is_wanted)


@router.post("/chat/completions", openapi_extra=request_body(messages=[{"role": "user", "content": "Hello"}]))
async def chat_completions(request: Request) -> Response:
    """Answer in a conversation."""
    service = service_of(request)
    fields = await read_json(request, max_bytes=service.settings.max_body_bytes)
    service.check_model(fields.pop("model", None))
    options = take_stream_options(fields)
    user = take_user(fields)
    chat = take_chat(fields)
    with in_chat_words(fields):
        params = chat_params(fields)
        prompt, form = await chat_prompt(service, chat)
        shape = ChatShape(
            _head(service, "chatcmpl-"), service.token_text, include_usage=options.include_usage, form=form
        )
        return await _answer(request, shape, [prompt], constrained(params, form), options, user=user)


async def _answer(
    request: Request,
    shape: Shape,
    prompts: Sequence[Any],
    params: SamplingParams,
    options: StreamOptions,
    *,
    user: str,
    keeps_prompt: bool = False,
) -> Response:
    service = service_of(request)
    if options.stream and params.prompt_logprobs is not None and not keeps_prompt:
        raise InvalidRequestError("prompt_logprobs goes with stream false only", param="prompt_logprobs")
    changed = Signal()
    owner = owner_of(request)
    jobs = [service.new_job(params, owner=owner, changed=changed, keeps_prompt=keeps_prompt) for _ in prompts]
    try:
        for job, prompt in zip(jobs, prompts, strict=True):
            await service.submit(job, prompt, params, user=user)
        if options.stream:
            source = _chunks(shape, jobs, changed, include_usage=options.include_usage)
            return EventStream(source, error_frame=openai_error_frame, on_hang_up=lambda: service.abort(*jobs))
        await unless_hung_up(request.receive, _all_ended(jobs))
    except BaseException:  # refused half-way, or the client hung up
        service.abort(*jobs)
        raise
    _raise_failure(jobs)
    return PiecesResponse(await dump_pieces(shape.answer(jobs)))


async def _chunks(
    shape: Shape, jobs: Sequence[Job], changed: Signal, *, include_usage: bool
) -> AsyncGenerator[bytes, None]:
    """The jobs' events as chunks, whatever came since the last write in one piece, then usage and [DONE]."""
    readers = [_Reader(shape, job, first_index=number * len(job.outputs)) for number, job in enumerate(jobs)]
    while True:
        chunks = [chunk for reader in readers for chunk in reader.fresh()]
        if chunks:
            yield b"".join(map(data_frame, chunks))
            if len(chunks) >= MAX_BATCH:
                await asyncio.sleep(0)  # a reader that keeps up would let nobody else in
        elif all(reader.at_end for reader in readers):
            break
        elif not await changed.wait(PING_S):
            yield PING
    _raise_failure(jobs)
    ending = [chunk for reader in readers for chunk in reader.unclosed()]
    if include_usage:
        ending.append(shape.usage_chunk(jobs))
    yield b"".join(map(data_frame, ending)) + DONE


class _Reader:
    """A position in one job's events."""

    def __init__(self, shape: Shape, job: Job, *, first_index: int) -> None:
        self._shape = shape
        self._job = job
        self._first_index = first_index
        self._position = 0
        self._num_chars: dict[int, int] = {}  # per output that has begun
        self._closed: set[int] = set()

    @property
    def at_end(self) -> bool:
        """Whether nothing more will come."""
        return self._job.finished and self._position == len(self._job.events)

    def fresh(self) -> list[str]:
        """Chunks of what has come since the last call."""
        batch = self._job.events[self._position : self._position + MAX_BATCH]
        self._position += len(batch)
        return [chunk for event in batch for chunk in self._chunks(event)]

    def unclosed(self) -> list[str]:
        """Last chunks of outputs whose end came without a token."""
        chunks = []
        for output in self._job.outputs:
            if output.index not in self._closed:
                chunks += self._chunks(
                    OutputDelta(self._job.seq_id, output.index, "", (), None, output.finish_reason, output.stop_reason)
                )
        return chunks

    def _chunks(self, event: OutputDelta) -> list[str]:
        index = self._first_index + event.index
        first = self._shape.first_chunk(index, self._job) if event.index not in self._num_chars else None
        text_offset = self._num_chars.get(event.index, 0)
        self._num_chars[event.index] = text_offset + len(event.text)
        if event.finish_reason is not None:
            self._closed.add(event.index)
        chunk = self._shape.chunk(index, event, text_offset=text_offset)
        return [each for each in (first, chunk) if each is not None]


async def _all_ended(jobs: Sequence[Job]) -> None:
    await asyncio.gather(*(job.ended.wait() for job in jobs))


def _raise_failure(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if (failure := job.failure()) is not None:
            raise failure


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
