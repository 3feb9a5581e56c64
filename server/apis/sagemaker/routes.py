"""/ping and /invocations, which answers like the route of OpenAI's API that its body is for."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ....engine.errors import InvalidRequestError
from ...api.openapi import GENERATION, KEYED, errors, events
from ...api.request_model import read_fields
from ...http.json_body import read_json
from ...http.json_response import JsonResponse
from ...service import service_of
from ..openai.request import ChatCompletionRequest, CompletionRequest
from ..openai.routes import chat_completions, completions

router = APIRouter(tags=["SageMaker"])
_CHUNKS = """data: {"id": "…", "object": "…", "created": 1, "model": "…", "choices": [{"index": 0, …}]}
"""


@router.get("/ping", response_description="The server takes requests.", responses=errors(*KEYED, 503))
async def ping(request: Request) -> Response:
    """200 while the server takes requests."""
    service = service_of(request)
    if service.state != "ready":
        raise service.lifecycle.not_ready()
    return JsonResponse({})


@router.post(
    "/invocations",
    responses=events("The answer, or with `stream` its chunks as events.", _CHUNKS, has_json=True)
    | errors(*GENERATION),
)
async def invocations(request: Request) -> Response:
    """Answer `messages` like /v1/chat/completions, and `prompt` like /v1/completions."""
    service = service_of(request)
    fields = await read_json(request, max_bytes=service.settings.max_body_bytes)
    if "messages" in fields:
        chat = read_fields(service, fields, ChatCompletionRequest)
        chat.name_ignored(request)
        return await chat_completions(request, chat)
    if "prompt" in fields:
        completion = read_fields(service, fields, CompletionRequest)
        completion.name_ignored(request)
        return await completions(request, completion)
    raise InvalidRequestError("send messages, as to /v1/chat/completions, or a prompt", param="prompt")
