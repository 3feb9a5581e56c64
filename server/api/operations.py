"""Routes for operators and tools: health, readiness, version, metrics, statistics and the tokenizer."""

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import SkipValidation
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ...engine.checks import check_token_ids
from ...engine.errors import InvalidRequestError
from ...engine.extras.chat.messages import read_messages
from ..http.errors import NotReadyError, describe
from ..http.json_response import JsonResponse
from ..service import Service, service_of
from ..version import package_version
from .answer_format import chat_prompt
from .chat_request import ChatFields, ChatMessage
from .openapi import ALWAYS, GENERATION, operation
from .prompt import Tokens
from .request_model import ModelName, RequestModel, read_request

router = APIRouter(tags=["operations"])


class TokenizeRequest(ChatFields):
    """A prompt, or messages like those of /v1/chat/completions."""

    model: ModelName = None
    prompt: str | None = None
    messages: SkipValidation[list[ChatMessage] | None] = None
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(RequestModel):
    """Token ids to turn into text."""

    model: ModelName = None
    tokens: Tokens


@router.head("/health", include_in_schema=False)
@router.get("/health", **operation({200: "The engine makes progress."}, errors=(*ALWAYS, 503)))
async def health(request: Request) -> Response:
    """200 while the engine makes progress, even if the server is draining."""
    fault = _fault(service_of(request))
    if fault is None:
        return JsonResponse({"status": "ok"})
    problem = describe(fault)
    body = problem.envelope() | {"code": problem.code}
    return JsonResponse(body, status_code=problem.status, headers=dict(problem.headers))


def _fault(service: Service) -> NotReadyError | None:
    """Return the gravest reason why the server is unhealthy, None if it is healthy."""
    if service.state not in ("ready", "draining"):
        return service.not_ready()
    if not service.engine.is_healthy:
        return NotReadyError("the engine makes no progress", code="stalled")
    if service.engine.is_failing:
        return NotReadyError("the last requests have all failed; the server's log says why", code="failing")
    if service.has_lost_store:
        return NotReadyError("results cannot be written; the server's log says why", code="store")
    return None


@router.head("/ready", include_in_schema=False)
@router.get("/ready", **operation({200: "The server accepts new work."}, errors=(*ALWAYS, 503)))
async def ready(request: Request) -> Response:
    """200 while the server accepts new work."""
    service = service_of(request)
    if service.state != "ready":
        return describe(service.not_ready()).response()
    return JsonResponse({"status": "ready"})


@router.head("/version", include_in_schema=False)
@router.get("/version", **operation({200: "The version."}, errors=ALWAYS))
async def version() -> Response:
    """The version of splitfuse."""
    return JsonResponse({"version": package_version()})


@router.get("/metrics", response_class=PlainTextResponse, **operation({200: "Prometheus' text format."}))
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(service_of(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)


@router.get("/stats", **operation({200: "The snapshot."}))
async def stats(request: Request) -> Response:
    """A snapshot of requests, blocks and the last steps."""
    service = service_of(request)
    about = {
        "model": service.settings.model_name,
        "version": package_version(),
        "state": service.state,
        "num_results": len(service.results),
        "num_result_bytes": service.results.num_bytes,
    }
    return JsonResponse(about | service.engine_stats())


@router.post(
    "/tokenize",
    **operation(
        {200: "`tokens`, their `count`, the server's `max_model_len`, and on request their texts as `token_strs`."},
        errors=GENERATION,
        body=TokenizeRequest,
        example={"prompt": "Once upon a time"},
    ),
)
async def tokenize(request: Request) -> Response:
    """The token ids of a prompt, or of messages in the chat template."""
    service = service_of(request)
    body = await read_request(request, TokenizeRequest)
    if (body.prompt is None) == (body.messages is None):
        raise InvalidRequestError("send either prompt or messages", param="prompt")
    chat = body.chat_of([] if body.messages is None else read_messages(body.messages))  # checks what a prompt ignores
    if body.prompt is not None:
        tokens = await service.encode(body.prompt, add_special_tokens=body.add_special_tokens)
    else:
        text, _ = await chat_prompt(service, chat)
        tokens = await service.encode(text, add_special_tokens=False)
    answer = {"tokens": tokens, "count": len(tokens), "max_model_len": service.engine.max_model_len}
    texts = {"token_strs": list(map(service.token_text, tokens))} if body.return_token_strs else {}
    return JsonResponse(answer | texts)


@router.post(
    "/detokenize",
    **operation(
        {200: "The text, as `prompt`."}, errors=GENERATION, body=DetokenizeRequest, example={"tokens": [5, 6, 7]}
    ),
)
async def detokenize(request: Request) -> Response:
    """The text of token ids, special tokens included."""
    service = service_of(request)
    tokens = (await read_request(request, DetokenizeRequest)).tokens
    check_token_ids(tokens, vocab_size=service.engine.model_config.vocab_size, param="tokens")
    return JsonResponse({"prompt": await service.decode(tokens)})
