"""POST /fork and GET /result/{seq_id}/tokens."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from ....engine.core.outputs import KnownOutput, OutputDelta, TokenLogprobs
from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ....engine.execution.sampling.rng import derive_seed
from ....engine.language.text.detokenizer import TextStream
from ....engine.serving.submitted_request import Resumed
from ...api.native.request import SeqId
from ...api.native.response import NativeStreamWriter, finite_logprob
from ...api.openapi import GENERATION, errors
from ...api.streaming import stream
from ...http.auth import owner_of
from ...http.disconnect import unless_disconnected
from ...http.json_response import JsonResponse
from ...jobs.job import Job
from ...jobs.result_store import seq_id_of
from ...service import Service, service_of
from .origins import Origin, Origins
from .request import ForkRequest

router = APIRouter(tags=["forks"])
MAX_TOP = 20


@router.post(
    "/fork",
    status_code=202,
    response_description="Accepted, as POST /generate: the result begins with the kept tokens.",
    responses=errors(*GENERATION),
)
async def fork(request: Request, body: Annotated[ForkRequest, Depends(ForkRequest.from_request)]) -> Response:
    """Continue an answer from one of its tokens; without a change it gives the same tokens again."""
    service, owner = service_of(request), owner_of(request)
    parent = await service.results.find(seq_id_of(body.seq_id), owner=owner)
    origin = service.part(Origins).of(parent)
    known = _known(service, parent, body)
    params = body.changed(origin.params)
    output = parent.outputs[body.output]
    is_whole = known == list(output.token_ids) and params == replace(origin.params, n=1, wants_receipt=False)
    await service.results.check_quota(owner)
    job = service.new_job(params, owner=owner)
    service.results.add(job)
    try:
        own = derive_seed(origin.seed, body.output) if body.output else origin.seed
        seed = own if params.seed in (None, origin.params.seed) else params.seed
        resumed = Resumed(seed, (KnownOutput(tuple(known)),), time.monotonic(), is_new=True)
        if is_whole:  # nothing is left to compute
            job.num_prompt_tokens = parent.num_prompt_tokens
            delta = OutputDelta(job.seq_id, 0, output.text, tuple(known), finish_reason=output.finish_reason)
            job.sink(replace(delta, stop_reason=output.stop_reason))
            service.part(Origins).add(job, replace(origin, params=params, seed=seed, scores={}))
            return _accepted(job, parent, body, service)
        if known:
            job.sink(OutputDelta(job.seq_id, 0, _text(service, origin, known, params), tuple(known)))
        await service.submit(job, list(origin.prompt_token_ids), params, user=body.user, resumed=resumed)
    except BaseException:
        service.abort(job)
        service.results.forget(job)
        raise
    return _accepted(job, parent, body, service)


def _accepted(job: Job, parent: Job, body: ForkRequest, service: Service) -> Response:
    if body.stream:
        return stream([job], NativeStreamWriter(job, service.json), on_disconnect=lambda: service.abort(job))
    url = f"/result/{job.seq_id}"
    accepted = {"seq_id": job.seq_id, "status": job.status, "result_url": url, "stream_url": f"{url}/stream"}
    headers = {"Location": url, "Retry-After": "1", "X-Seq-Id": job.seq_id}
    return JsonResponse(accepted | {"parent": parent.seq_id}, status_code=202, headers=headers)


def _known(service: Service, parent: Job, body: ForkRequest) -> list[int]:
    """Return the tokens with which the fork begins. Raises InvalidRequestError."""
    if body.output >= len(parent.outputs):
        raise InvalidRequestError(f"the answer has {len(parent.outputs)} outputs", param="output")
    token_ids: list[int] = list(parent.outputs[body.output].token_ids)
    if body.at is not None and body.at > len(token_ids):
        raise InvalidRequestError(f"the output has {len(token_ids)} tokens; at is 0 to {len(token_ids)}", param="at")
    if body.append_token_ids is not None and body.append_text is not None:
        raise InvalidRequestError("send append_token_ids or append_text, not both", param="append_text")
    appended = body.append_token_ids or []
    if body.append_text is not None:
        appended = service.tokenizer.encode(body.append_text, add_special_tokens=False)
    vocab_size = service.engine.model_config.vocab_size
    if wrong := [token_id for token_id in appended if not 0 <= token_id < vocab_size]:
        raise InvalidRequestError(f"token {wrong[0]} is not below {vocab_size}", param="append_token_ids")
    return token_ids[: body.at] + appended


def _text(service: Service, origin: Origin, token_ids: Sequence[int], params: SamplingParams) -> str:
    """Return the text that is certain after these tokens, as the engine would have delivered it."""
    if service.engine.tokenizer is None:
        return ""
    pieces = TextStream(
        service.engine.tokenizer,
        origin.prompt_token_ids,
        stop=params.stop,
        include_stop=params.include_stop_str_in_output,
        skip_special_tokens=params.skip_special_tokens,
    )
    return "".join(pieces.push(token_id, last=False) for token_id in token_ids)


@router.get(
    "/result/{seq_id}/tokens",
    response_description="Each token with its rank, its logprob and the likeliest tokens at its place.",
    responses=errors(*GENERATION),
)
async def tokens(
    request: Request,
    seq_id: SeqId,
    first: Annotated[int, Query(alias="from", ge=0, description="Number of the first token.")] = 0,
    to: Annotated[int | None, Query(ge=0, description="Number behind the last token; default all.")] = None,
    top: Annotated[int, Query(ge=0, le=MAX_TOP, description="The most alternatives of each token.")] = MAX_TOP,
    output: Annotated[int, Query(ge=0, description="Index of the answer's output.")] = 0,
) -> Response:
    """The tokens of a kept answer, by the model's own distribution, without temperature or filters."""
    service = service_of(request)
    job = await service.results.find(seq_id_of(seq_id), owner=owner_of(request))
    origin = service.part(Origins).of(job)
    if output >= len(job.outputs):
        raise InvalidRequestError(f"the answer has {len(job.outputs)} outputs", param="output")
    token_ids = list(job.outputs[output].token_ids)
    if token_ids and (output, top) not in origin.scores:
        await unless_disconnected(request.receive, _score(service, job, origin, output=output, top=top))
    scores = origin.scores[output, top] if token_ids else ()
    begin, num_prompt = len(scores) - len(token_ids), len(origin.prompt_token_ids)
    chosen = range(min(first, len(token_ids)), min(len(token_ids) if to is None else to, len(token_ids)))
    return JsonResponse(
        {
            "seq_id": job.seq_id,
            "output": output,
            "num_prompt_tokens": num_prompt,
            "num_tokens": len(token_ids),
            "tokens": [_token(service, number, scores[begin + number]) for number in chosen],
        }
    )


async def _score(service: Service, job: Job, origin: Origin, *, output: int, top: int) -> None:
    """Compute the scores of an output in one pass, as a prompt."""
    params = SamplingParams(
        temperature=0, max_tokens=1, ignore_eos=True, prompt_logprobs=top, adapter=origin.params.adapter
    )
    whole = [*origin.prompt_token_ids, *job.outputs[output].token_ids]
    scoring = service.new_job(params, owner=job.owner)
    await service.complete([scoring], [whole], params)
    assert scoring.prompt_logprobs is not None
    origin.scores[output, top] = scoring.prompt_logprobs
    job.grow(scoring.prompt_logprobs.num_bytes)


def _token(service: Service, number: int, score: TokenLogprobs | None) -> dict[str, Any]:
    assert score is not None  # as a prompt's first token would have
    own, top = (score.token_id, score.logprob, score.rank), enumerate(score.top, 1)
    entries = [_entry(service, *own), *(_entry(service, *pair, rank) for rank, pair in top)]
    return {"position": number, **entries[0], "top": entries[1:]}


def _entry(service: Service, token_id: int, logprob: float, rank: int | None) -> dict[str, Any]:
    tokenizer = service.engine.tokenizer
    text = None if tokenizer is None else tokenizer.decode([token_id], skip_special_tokens=False)
    return {"token_id": token_id, "text": text, "logprob": finite_logprob(logprob), "rank": rank}
