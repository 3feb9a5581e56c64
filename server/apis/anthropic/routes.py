"""/v1/messages for Anthropic's clients, over the same jobs as the other routes.

A disconnect aborts the request, streamed or not; these jobs are not kept.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from ...api.chat.answer_format import chat_prompt
from ...api.chat.generation import chat_generation, streamed
from ...api.chat.model_text import ModelText
from ...api.chat.timed_route import AnthropicRoute
from ...api.openapi import GENERATION, errors, events
from ...api.request_model import read_fields
from ...http.errors import REQUEST_ID
from ...http.json_response import JsonResponse
from ...http.json_writer import SlicedResponse
from ...service import Service, service_of
from .errors import SCHEMA
from .message import message
from .request import CountTokensRequest, MessagesRequest
from .stream import MessagesStreamWriter

router = APIRouter(prefix="/v1/messages", tags=["Anthropic"], route_class=AnthropicRoute)

_EVENTS = """event: content_block_delta
data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}
"""


@router.post(
    "",
    responses=events("The message, or with `stream` its events.", _EVENTS, has_json=True)
    | errors(*GENERATION, schema=SCHEMA),
)
async def messages(
    request: Request, body: Annotated[MessagesRequest, Depends(MessagesRequest.from_request)]
) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    generation, answer = await chat_generation(service, body.chat(), body.params(), user=body.tenant)
    if body.stream:
        jobs = await generation.begin(request)
        request_id, max_tokens = request.scope[REQUEST_ID], body.max_tokens
        writer = MessagesStreamWriter(jobs[0], answer, max_tokens=max_tokens, request_id=request_id)
        return streamed(request, jobs, writer)
    jobs = await generation.answered(request)
    return SlicedResponse.of(await service.json.write(message(jobs[0], answer, max_tokens=body.max_tokens)))


async def message_batched(
    service: Service, fields: Mapping[str, Any], *, owner: str, defaults: Mapping[str, Any]
) -> dict[str, Any]:
    """Answer like POST /v1/messages, in the background. Raises like the route."""
    body = read_fields(service, fields, MessagesRequest, defaults=defaults)
    generation, answer = await chat_generation(service, body.chat(), body.params(), user=body.tenant)
    (job,) = await generation.complete(service, owner=owner, is_background=True)
    return message(job, answer, max_tokens=body.max_tokens)


@router.post(
    "/count_tokens",
    response_description="The number of tokens, as `input_tokens`.",
    responses=errors(*GENERATION, schema=SCHEMA),
)
async def count_tokens(
    request: Request, body: Annotated[CountTokensRequest, Depends(CountTokensRequest.from_request)]
) -> Response:
    """Count the tokens of a conversation without answering it."""
    service = service_of(request)
    text, _ = await chat_prompt(service, body.chat())
    tokens = await ModelText(service).encode(text, add_special_tokens=False)
    return JsonResponse({"input_tokens": len(tokens)})
