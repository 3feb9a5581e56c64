"""/v1/messages for Anthropic's clients, over the same jobs as the other routes.

A disconnect aborts the request, streamed or not; these jobs are not kept.
"""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ...api.openapi import GENERATION, events, operation
from ...api.request_model import read_request
from ...http.errors import REQUEST_ID
from ...http.json_response import JsonResponse
from ...http.json_writer import SlicedResponse
from ...service import service_of
from ..chat.answer_format import chat_prompt
from ..chat.generation import chat_generation, streamed
from ..chat.model_text import ModelText
from .errors import SCHEMA
from .message import message
from .request import CountTokensRequest, MessagesRequest
from .stream import MessagesStreamWriter

router = APIRouter(prefix="/v1/messages", tags=["Anthropic"])

_MESSAGES = [{"role": "user", "content": "Hello"}]
_EVENTS = """event: content_block_delta
data: {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}
"""


@router.post(
    "",
    **operation(
        {200: events("The message, or with `stream` its events.", _EVENTS, has_json=True)},
        errors=GENERATION,
        error_schema=SCHEMA,
        body=MessagesRequest,
        example={"messages": _MESSAGES, "max_tokens": 32},
    ),
)
async def messages(request: Request) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    body = await read_request(request, MessagesRequest)
    generation, answer = await chat_generation(service, body.chat(), body.params(), user=body.tenant)
    response: Response
    if body.stream:
        jobs = await generation.begin(request)
        request_id, max_tokens = request.scope[REQUEST_ID], body.max_tokens
        writer = MessagesStreamWriter(jobs[0], answer, max_tokens=max_tokens, request_id=request_id)
        response = streamed(request, jobs, writer)
    else:
        jobs = await generation.answered(request)
        response = SlicedResponse.of(await service.json.write(message(jobs[0], answer, max_tokens=body.max_tokens)))
    response.headers["request-id"] = request.scope[REQUEST_ID]
    return response


@router.post(
    "/count_tokens",
    **operation(
        {200: "The number of tokens, as `input_tokens`."},
        errors=GENERATION,
        error_schema=SCHEMA,
        body=CountTokensRequest,
        example={"messages": _MESSAGES},
    ),
)
async def count_tokens(request: Request) -> Response:
    """Count the tokens of a conversation without answering it."""
    service = service_of(request)
    body = await read_request(request, CountTokensRequest)
    text, _ = await chat_prompt(service, body.chat())
    tokens = await ModelText(service).encode(text, add_special_tokens=False)
    return JsonResponse({"input_tokens": len(tokens)}, headers={"request-id": request.scope[REQUEST_ID]})
