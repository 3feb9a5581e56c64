"""llama.cpp's routes over the same jobs as the other routes. /health, /tokenize and /metrics are the server's own.

A disconnect aborts the request, streamed or not; these jobs are not kept.
"""

from dataclasses import replace
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Depends
from pydantic import SkipValidation
from starlette.requests import Request
from starlette.responses import Response

from ....engine.core.sampling_params import SamplingParams
from ....engine.language.chat.messages import read_messages
from ... import package_version
from ...api.chat.answer_check import AnswerCheck
from ...api.chat.answer_format import AnswerFormat, chat_prompt
from ...api.chat.chat_request import ChatFields, ChatMessage
from ...api.chat.fill_in_middle import fill_in
from ...api.chat.generation import Generation, streamed
from ...api.chat.token_limit import announce_cut
from ...api.openapi import GENERATION, KEYED, errors, events
from ...api.request_model import ModelName
from ...http.json_response import JsonResponse
from ...http.json_writer import SlicedResponse
from ...service import service_of
from .request import InfillRequest, LlamaCompletionRequest
from .response import CompletionStreamWriter, whole

router = APIRouter(tags=["llama.cpp"])
_EVENTS = """data: {"index": 0, "content": " there", "tokens": [421], "stop": false}
"""
_ANSWERED = events("The answer, or with `stream` its events.", _EVENTS, has_json=True)


class ApplyTemplateRequest(ChatFields):
    """Messages to put into the chat template."""

    example: ClassVar = {"messages": [{"role": "user", "content": "Hello"}]}
    is_tolerant: ClassVar = True
    model: ModelName = None
    messages: SkipValidation[list[ChatMessage]]


@router.post("/completion", responses=_ANSWERED | errors(*GENERATION))
async def completion(
    request: Request, body: Annotated[LlamaCompletionRequest, Depends(LlamaCompletionRequest.from_request)]
) -> Response:
    """Continue a prompt."""
    return await _answer(request, body, body.prompt, body.params())


@router.post("/infill", responses=_ANSWERED | errors(*GENERATION))
async def infill(request: Request, body: Annotated[InfillRequest, Depends(InfillRequest.from_request)]) -> Response:
    """Fill in the text between a prefix and a suffix, if the model has tokens for it."""
    params, files = body.params(), [(extra.filename, extra.text) for extra in body.input_extra]
    found = await fill_in(
        service_of(request), body.input_prefix, body.input_suffix, param="input_suffix", after=body.prompt, files=files
    )
    params = replace(params, stop_token_ids=(*params.stop_token_ids, *found.stop_token_ids))
    return await _answer(request, body, found.token_ids, params)


async def _answer(request: Request, body: LlamaCompletionRequest, prompt: Any, params: SamplingParams) -> Response:
    generation = Generation(prompts=[prompt], params=params, check=await AnswerCheck.of(params, AnswerFormat()))
    jobs = await (generation.begin(request) if body.stream else generation.answered(request))
    announce_cut(request, jobs, limit=None if body.n_predict is None else params.default_max_tokens)
    if body.stream:
        return streamed(request, jobs, CompletionStreamWriter(jobs[0]))
    return SlicedResponse.of(await service_of(request).json.write(whole(jobs[0], has_tokens=body.return_tokens)))


@router.get("/props", response_description="The model and its defaults.", responses=errors(*KEYED, 503))
async def props(request: Request) -> Response:
    """The model and its defaults."""
    service = service_of(request)
    engine, tokenizer = service.engine, service.engine.tokenizer
    template = tokenizer.chat_template if tokenizer is not None and tokenizer.has_chat_template else None
    return JsonResponse(
        {
            "default_generation_settings": {
                "n_ctx": engine.max_model_len,
                "params": dict(service.default_sampling_params),
            },
            "total_slots": engine.config.max_num_seqs,
            "model_alias": service.settings.model_name,
            "model_path": service.settings.model_name,
            "chat_template": "" if template is None else template.source,
            "modalities": {"vision": False, "audio": False},
            "build_info": f"splitfuse {package_version()}",
        }
    )


@router.post("/apply-template", response_description="The text, as `prompt`.", responses=errors(*GENERATION))
async def apply_template(
    request: Request, body: Annotated[ApplyTemplateRequest, Depends(ApplyTemplateRequest.from_request)]
) -> Response:
    """Put messages into the chat template without answering them."""
    text, _ = await chat_prompt(service_of(request), body.chat_of(read_messages(body.messages)))
    return JsonResponse({"prompt": text})
