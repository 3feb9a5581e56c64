"""TGI's routes over the same jobs as the other routes. POST /generate is the server's own, and hands TGI's body over.

A disconnect aborts the request, streamed or not; these jobs are not kept.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from ... import package_version
from ...api.openapi import GENERATION, KEYED, errors, events
from ...api.request_model import read_fields
from ...http.json_response import JsonResponse
from ...http.json_writer import SlicedResponse
from ...service import service_of
from ..chat.answer_check import AnswerCheck
from ..chat.answer_format import AnswerFormat
from ..chat.generation import Generation, streamed
from ..chat.model_text import ModelText
from ..chat.token_limit import announce_cut, cut_to_fit
from .request import TgiRequest
from .response import Form, TgiStreamWriter

router = APIRouter(tags=["TGI"])
Body = Annotated[TgiRequest, Depends(TgiRequest.from_request)]
_EVENTS = """data: {"index": 1, "token": {"id": 421, "text": " there", …}, "generated_text": null, "details": null}
"""
_STREAMED = events("An event per token; the last one has `generated_text` and `details`.", _EVENTS)
_ANSWERED = events("A list with `generated_text`, or with `stream` the events.", _EVENTS, has_json=True)


@router.post("/", responses=_ANSWERED | errors(*GENERATION))
async def generate(request: Request, body: Body) -> Response:
    """Continue a text."""
    return await _answer(request, body, is_stream=body.stream)


@router.post("/generate_stream", responses=_STREAMED | errors(*GENERATION))
async def generate_stream(request: Request, body: Body) -> Response:
    """Continue a text, as a stream."""
    return await _answer(request, body, is_stream=True)


async def generate_by_inputs(request: Request, fields: Mapping[str, Any]) -> Response:
    """Answer POST /generate with TGI's body. The answer is an object, not the list of POST /."""
    body = read_fields(service_of(request), fields, TgiRequest)
    body.name_ignored(request)
    return await _answer(request, body, is_stream=body.stream, is_listed=False)


@router.get("/info", response_description="The model and its limits.", responses=errors(*KEYED, 503))
async def info(request: Request) -> Response:
    """The model and its limits."""
    service = service_of(request)
    limit, config = service.engine.max_model_len, service.engine.config
    return JsonResponse(
        {
            "model_id": service.settings.model_name,
            "model_sha": None,
            "model_dtype": str(config.dtype),
            "model_device_type": str(config.device),
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": config.max_num_seqs,
            "max_best_of": 1,
            "max_stop_sequences": 16,
            "max_input_tokens": limit - 1,
            "max_total_tokens": limit,
            "max_client_batch_size": 1,
            "router": "splitfuse",
            "version": package_version(),
        }
    )


async def _answer(request: Request, body: TgiRequest, *, is_stream: bool, is_listed: bool = True) -> Response:
    service, asked = service_of(request), body.parameters
    params = asked.params(defaults=body.defaults, has_logprobs=is_stream or asked.details)
    params = cut_to_fit(params, is_strict=service.settings.strict_fields)
    generation = Generation(prompts=[body.inputs], params=params, check=await AnswerCheck.of(params, AnswerFormat()))
    form = Form(
        token_text=ModelText(service).token,
        beginning=body.inputs if asked.return_full_text else "",
        seed=params.seed,
    )
    jobs = await (generation.begin(request) if is_stream else generation.answered(request))
    announce_cut(request, jobs, limit=params.default_max_tokens if asked.max_new_tokens is not None else None)
    if is_stream:
        return streamed(request, jobs, TgiStreamWriter(jobs[0], form))
    answer = form.whole(jobs[0], has_details=asked.details)
    return SlicedResponse.of(await service.json.write([answer] if is_listed else answer))
