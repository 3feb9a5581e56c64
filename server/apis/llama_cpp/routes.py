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
from ....engine.errors import InvalidRequestError
from ....engine.language.chat.messages import read_messages
from ... import package_version
from ...api.chat.answer_check import AnswerCheck
from ...api.chat.answer_format import AnswerFormat, chat_prompt
from ...api.chat.chat_request import ChatFields, ChatMessage
from ...api.chat.fill_in_middle import fill_in
from ...api.chat.generation import Generation, streamed
from ...api.chat.model_text import ModelText
from ...api.chat.token_limit import announce_cut
from ...api.openapi import GENERATION, KEYED, errors, events
from ...api.prompt import MAX_PROMPTS, is_token_ids
from ...api.request_model import ModelName
from ...api.rights import caller_of
from ...http.json_response import JsonResponse
from ...http.json_writer import SlicedResponse
from ...service import Service, service_of
from .request import InfillRequest, LlamaCompletionRequest
from .response import CompletionStreamWriter, settings, whole

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
    several = _several(body.prompt)
    prompts = [await _prompt(service_of(request), prompt) for prompt in several or [body.prompt]]
    return await _answer(request, body, prompts, body.params(), is_list=len(prompts) > 1)


@router.post("/infill", responses=_ANSWERED | errors(*GENERATION))
async def infill(request: Request, body: Annotated[InfillRequest, Depends(InfillRequest.from_request)]) -> Response:
    """Fill in the text between a prefix and a suffix, if the model has tokens for it."""
    params, files = body.params(), [(extra.filename, extra.text) for extra in body.input_extra]
    found = await fill_in(
        service_of(request), body.input_prefix, body.input_suffix, param="input_suffix", after=body.prompt, files=files
    )
    params = replace(params, stop_token_ids=(*params.stop_token_ids, *found.stop_token_ids))
    return await _answer(request, body, [found.token_ids], params)


def _several(value: Any) -> list[Any] | None:
    """Return the prompts of a list; none if it is one prompt of token ids, or of texts and ids mixed."""
    if not isinstance(value, list) or not value or any(type(part) is int for part in value):
        return None
    if len(value) > MAX_PROMPTS:
        raise InvalidRequestError(f"prompt has more than {MAX_PROMPTS} prompts", param="prompt")
    return value


async def _prompt(service: Service, value: Any) -> Any:
    """Return a text, token ids, an object with a text, or texts and ids mixed, as one prompt."""
    if isinstance(value, dict) and value.keys() == {"prompt_string"}:
        value = value["prompt_string"]
    if isinstance(value, str) or is_token_ids(value):
        return value
    if not isinstance(value, list) or not all(isinstance(part, str) or type(part) is int for part in value):
        raise InvalidRequestError("prompt must be a string, or a list of token ids and strings", param="prompt")
    text_of = ModelText(service)
    parts = [
        [part] if isinstance(part, int) else await text_of.encode(part, add_special_tokens=False) for part in value
    ]
    return [token_id for part in parts for token_id in part]


async def _answer(
    request: Request, body: LlamaCompletionRequest, prompts: list[Any], params: SamplingParams, *, is_list: bool = False
) -> Response:
    if is_list and body.stream:
        raise InvalidRequestError("a stream has one prompt; send several without stream", param="prompt")
    generation = Generation(prompts=prompts, params=params, check=await AnswerCheck.of(params, AnswerFormat()))
    jobs = await (generation.begin(request) if body.stream else generation.answered(request))
    announce_cut(request, jobs, limit=None if body.n_predict is None else params.default_max_tokens)
    shown = ModelText(service_of(request)).shown
    more = {"generation_settings": settings(params, is_stream=body.stream)}
    if body.stream:
        return streamed(request, jobs, CompletionStreamWriter(jobs[0], shown, more))
    answers = [{**whole(job, shown, has_tokens=body.return_tokens), "index": i} | more for i, job in enumerate(jobs)]
    return SlicedResponse.of(await service_of(request).json.write(answers if is_list else answers[0]))


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
                "params": settings(
                    SamplingParams.from_fields({}, default_max_tokens=None, defaults=service.default_sampling_params),
                    is_stream=True,
                ),
            },
            "total_slots": engine.config.max_num_seqs,
            "model_alias": service.settings.model_name,
            "model_path": service.settings.model_name,
            "chat_template": "" if template is None else template.source,
            "modalities": {"vision": False, "audio": False},
            "build_info": f"splitfuse {package_version()}",
        }
    )


@router.get("/slots", response_description="A place for each sequence that can run.", responses=errors(*KEYED, 503))
async def slots(request: Request) -> Response:
    """Places for sequences, and how many of them are in use: for a key that is no admin's, by its own requests."""
    engine, caller = service_of(request).engine, caller_of(request)
    counts = engine.stats() if caller.may_read_sums else engine.view.counts_of(caller.owner)
    return JsonResponse(
        [
            {
                "id": number,
                "n_ctx": engine.max_model_len,
                "speculative": False,
                "is_processing": number < counts["num_running"],
            }
            for number in range(engine.config.max_num_seqs)
        ]
    )


@router.post("/apply-template", response_description="The text, as `prompt`.", responses=errors(*GENERATION))
async def apply_template(
    request: Request, body: Annotated[ApplyTemplateRequest, Depends(ApplyTemplateRequest.from_request)]
) -> Response:
    """Put messages into the chat template without answering them."""
    text, _ = await chat_prompt(service_of(request), body.chat_of(read_messages(body.messages)))
    return JsonResponse({"prompt": text})
