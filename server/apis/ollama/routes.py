"""/api for Ollama's clients, over the same jobs as the other routes.

A disconnect aborts the request, streamed or not; these jobs are not kept.
"""

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from ....engine.errors import InvalidRequestError
from ...api.chat.answer_format import AnswerFormat
from ...api.chat.fill_in_middle import fill_in
from ...api.chat.generation import Generation, chat_generation, streamed
from ...api.openapi import BODY, GENERATION, KEYED, Answers, errors
from ...http.json_body import read_json
from ...http.json_response import JsonResponse
from ...http.json_writer import SlicedResponse
from ...service import Service, service_of
from .errors import SCHEMA
from .model_info import listed, running, show_model
from .request import OllamaChatRequest, OllamaGenerateRequest, OllamaShowRequest
from .response import Content, Form, OllamaStreamWriter, chat_content, generate_content, head

router = APIRouter(prefix="/api", tags=["Ollama"])

# The release of Ollama whose API this follows; clients compare it with the one they need.
API_VERSION = "0.12.0"
_UNSUPPORTED = ("pull", "push", "create", "copy", "delete")
_LINES = """{"model": "…", "created_at": "…", "message": {"role": "assistant", "content": "Hi"}, "done": false}
"""


_ANSWERED: Answers = {
    200: {
        "description": "One JSON object per line, or a single object with `stream` false.",
        "content": {"application/x-ndjson": {"schema": {"type": "string"}, "example": _LINES}, "application/json": {}},
    }
}


@router.post("/chat", responses=_ANSWERED | errors(*GENERATION, schema=SCHEMA))
async def chat(
    request: Request, body: Annotated[OllamaChatRequest, Depends(OllamaChatRequest.from_request)]
) -> Response:
    """Answer a conversation."""
    service = service_of(request)
    params = body.params(prompt="messages")
    if body.messages == []:
        return _answer_loading(service, chat_content)
    generation, answer = await chat_generation(service, body.chat(), params, user="")
    return await _answer(request, generation, Form(answer=answer, content=chat_content), is_stream=body.stream)


@router.post("/generate", responses=_ANSWERED | errors(*GENERATION, schema=SCHEMA))
async def generate(
    request: Request, body: Annotated[OllamaGenerateRequest, Depends(OllamaGenerateRequest.from_request)]
) -> Response:
    """Answer a prompt in the model's chat template, if it has one, or continue it with `raw`."""
    service = service_of(request)
    params = body.params(prompt="prompt")
    if not body.prompt:
        return _answer_loading(service, generate_content)
    if body.suffix:
        found = await fill_in(service, body.prompt, body.suffix, param="suffix")
        params = replace(params, stop_token_ids=(*params.stop_token_ids, *found.stop_token_ids))
        generation, answer = Generation(prompts=[found.token_ids], params=params), AnswerFormat()
    elif body.raw or not service.tokenizer.has_chat_template:
        generation, answer = Generation(prompts=[body.prompt], params=params), AnswerFormat()
    else:
        generation, answer = await chat_generation(service, body.chat(), params, user="")
    return await _answer(request, generation, Form(answer=answer, content=generate_content), is_stream=body.stream)


@router.get(
    "/tags", response_description="The model, under each of its names.", responses=errors(*KEYED, 503, schema=SCHEMA)
)
async def tags(request: Request) -> Response:
    """The served model, under each of its names."""
    service = service_of(request)
    return JsonResponse({"models": [listed(service, name) for name in service.settings.listed_model_names]})


@router.get("/ps", response_description="The model.", responses=errors(*KEYED, 503, schema=SCHEMA))
async def ps(request: Request) -> Response:
    """The loaded model."""
    service = service_of(request)
    return JsonResponse({"models": [running(service, service.settings.model_name)]})


@router.post("/show", response_description="The description.", responses=errors(*BODY, schema=SCHEMA))
async def show(
    request: Request, body: Annotated[OllamaShowRequest, Depends(OllamaShowRequest.from_request)]
) -> Response:
    """Describe the model."""
    return JsonResponse(await show_model(service_of(request)))


@router.get("/version", response_description="The version.", responses=errors(*KEYED, schema=SCHEMA))
async def version() -> Response:
    """The release of Ollama whose API this follows."""
    return JsonResponse({"version": API_VERSION})


@router.post("/embed", include_in_schema=False)
@router.post("/embeddings", include_in_schema=False)
async def embed(request: Request) -> Response:
    """Embed texts, if the model pools; /api/embeddings is the older form of one text."""
    service = service_of(request)
    if not any(extension.name == "embeddings" for extension in service.extensions.used):
        raise InvalidRequestError("this model makes text and no embeddings; serve an embedding model")
    from . import embedding  # here: the extra may not be there

    if request.url.path.endswith("/embed"):
        answer = await embedding.embed(request, await embedding.OllamaEmbedRequest.from_request(request))
    else:
        answer = await embedding.embeddings(request, await embedding.OllamaEmbeddingsRequest.from_request(request))
    return SlicedResponse(service.json.slices(answer))


async def unsupported(request: Request) -> Response:
    """Refuse Ollama's other routes by name. A pull of the served model has nothing to do."""
    name = request.url.path.rpartition("/")[2]
    if name == "pull":
        settings = service_of(request).settings
        body = await read_json(request, max_bytes=settings.max_body_bytes)
        if settings.serves(str(body.get("model") or body.get("name"))):
            return JsonResponse({"status": "success"})
    raise InvalidRequestError(f"{name} is not supported: this server has the one model that it was started with")


for _name in _UNSUPPORTED:
    _methods = ["DELETE" if _name == "delete" else "POST"]
    router.add_api_route(f"/{_name}", unsupported, methods=_methods, include_in_schema=False)


async def _answer(request: Request, generation: Generation, form: Form, *, is_stream: bool) -> Response:
    if is_stream:
        jobs = await generation.begin(request)
        return streamed(request, jobs, OllamaStreamWriter(jobs[0], form))
    jobs = await generation.answered(request)
    return SlicedResponse.of(await service_of(request).json.write(form.whole(jobs[0])))


def _answer_loading(service: Service, content: Content) -> Response:
    """Answer an empty request, which clients send to load a model: the model is loaded."""
    answer = head(service.settings.model_name, service.start_time) | content([])
    return JsonResponse(answer | {"done": True, "done_reason": "load"})
