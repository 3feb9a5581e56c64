"""POST /fork and GET /result/{seq_id}/tokens."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from starlette.requests import Request
from starlette.responses import Response

from ....engine.core.outputs import TokenLogprobs
from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import InvalidRequestError
from ....engine.extras.forks.fork import Fork
from ....engine.serving.request_output import CompletionOutput
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
from .request import ForkRequest, SavedFork

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
    origin = await service.part(Origins).of(parent)
    planned = Fork.of(
        _output_of(parent, body.output),
        origin.prompt_token_ids,
        origin.params,
        origin.seed,
        seq_id=parent.seq_id,
        parent=origin.parent,
        engine=service.engine,
        changed=body.changed(origin.params),
        at=body.at,
        append_token_ids=body.append_token_ids,
        append_text=body.append_text,
    )
    await service.results.check_quota(owner)
    job = service.new_job(planned.params, owner=owner)
    if parent.attachment is not None and planned.params.structured_outputs == origin.params.structured_outputs:
        job.attach(parent.attachment)  # so that a fork of a stored chat can be read as one
    service.results.add(job)
    try:
        prompt, resumed = list(origin.prompt_token_ids), planned.resumed
        first = planned.first_delta(job.seq_id, service.engine.tokenizer) if planned.known else None
        max_tokens = service.engine.prompts.max_tokens(len(prompt), service.results.bounded(planned.params))
        is_kept = body.durable or not body.stream
        kept = SavedFork.saved(planned.params, planned.seed, max_tokens=max_tokens) if is_kept else None
        await service.submit(job, prompt, planned.params, user=body.user, resumed=resumed, first=first, kept=kept)
    except BaseException:
        service.abort(job)
        service.results.forget(job)
        raise
    return _accepted(job, parent, body, service)


def _accepted(job: Job, parent: Job, body: ForkRequest, service: Service) -> Response:
    if body.stream:
        writer, headers = NativeStreamWriter(job, service.json), {"X-Seq-Id": job.seq_id}
        ends_it = not body.durable
        return stream([job], writer, on_disconnect=lambda: service.abort(job) if ends_it else None, headers=headers)
    url = f"/result/{job.seq_id}"
    accepted = {"seq_id": job.seq_id, "status": job.status, "result_url": url, "stream_url": f"{url}/stream"}
    headers = {"Location": url, "Retry-After": "1", "X-Seq-Id": job.seq_id}
    return JsonResponse(accepted | {"parent": parent.seq_id}, status_code=202, headers=headers)


def _output_of(job: Job, index: int) -> CompletionOutput:
    if index >= len(job.outputs):
        raise InvalidRequestError(f"the answer has {len(job.outputs)} outputs", param="output")
    return job.outputs[index]


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
    origin = await service.part(Origins).of(job)
    token_ids = _output_of(job, output).token_ids
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
    own = _entry(service, score.token_id, score.logprob, score.rank)
    return {"position": number, **own, "top": [_entry(service, *pair, rank) for rank, pair in enumerate(score.top, 1)]}


def _entry(service: Service, token_id: int, logprob: float, rank: int | None) -> dict[str, Any]:
    tokenizer = service.engine.tokenizer
    text = None if tokenizer is None else tokenizer.decode([token_id], skip_special_tokens=False)
    return {"token_id": token_id, "text": text, "logprob": finite_logprob(logprob), "rank": rank}
