"""The pages' files, `GET /engine`, `GET /stats/stream` and `GET /result/{id}/explain`."""

import time
from collections.abc import AsyncGenerator
from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from ....engine.extras.inspection.explanation import Explanation, explain
from ...api.openapi import KEYED, LOOKUP, errors, events
from ...api.rights import caller_of
from ...http.auth import owner_of
from ...http.errors import Problem, ResultNotFoundError
from ...http.json_response import JsonResponse, dumps
from ...http.sse import EventStream, frame
from ...jobs.job import Job
from ...jobs.result_store import seq_id_of
from ...service import Service, service_of
from . import PageSettings
from .assets import ENGINE, PREFIX, asset, names
from .part import PagePart
from .recent_jobs import EndedJob

router = APIRouter(tags=["page"])

_STEPS = """event: hello
data: {"batching_policy": "splitfuse", "budget": 512, …}

event: steps
data: [{"step": 12, "start": 1.25, "end": 1.27, "chunks": [[3, 0, 480]], "decodes": [1, 2], …}]
"""


@router.get(PREFIX + "{name}", include_in_schema=False)
async def page_file(request: Request, name: str) -> Response:
    """Return a file of the page."""
    if not service_of(request).settings.section(PageSettings).page or name not in names():
        raise HTTPException(404)
    return asset(name)


@router.head(ENGINE, include_in_schema=False)
@router.get(ENGINE, include_in_schema=False)
async def engine_page(request: Request) -> Response:
    """Return the engine view."""
    return await page_file(request, "engine.html")


@router.get(
    "/stats/stream", responses=events("The work of each step, in batches of 50 ms.", _STEPS) | errors(*KEYED, 429, 503)
)
async def step_stream(request: Request) -> Response:
    """One record per step while the stream is open. An admin sees all requests, other keys only their own ones.

    Ids are told to their own key alone.
    """
    service, caller = service_of(request), caller_of(request)
    steps = service.part(PagePart).steps
    source: AsyncGenerator[bytes, None] = steps.chunks(service.engine, owner=caller.owner, sees_all=caller.is_admin)
    return EventStream(source, error_frame=_error_frame)


def _error_frame(problem: Problem) -> bytes:
    return frame(dumps(problem.envelope()), event="error").encode("ascii")


@router.get("/result/{seq_id}/explain", response_description="The explanation.", responses=errors(*LOOKUP))
async def explain_result(
    request: Request, seq_id: Annotated[str, Path(description="The id from POST /generate.")]
) -> Response:
    """Explain a result's time: its waits with their reasons, each chunk, preemptions, and shares that add up.

    A running request is explained so far. Answers that are not kept are explained if the pages' stream was open.
    Only an admin reads how many tokens of others shared the steps.
    """
    service = service_of(request)
    job = await _job(service, seq_id_of(seq_id), owner=owner_of(request))
    return JsonResponse(explanation(service, job, sees_others=caller_of(request).is_admin))


async def _job(service: Service, seq_id: str, *, owner: str) -> Job | EndedJob:
    """Return a kept job, or a recent one of a chat. Raises ResultNotFoundError."""
    try:
        return await service.results.find(seq_id, owner=owner)
    except ResultNotFoundError:
        recent: Job | EndedJob | None = service.part(PagePart).recent.get(seq_id, owner=owner)
        if recent is None:
            raise
        return recent


def explanation(service: Service, job: Job | EndedJob, *, sees_others: bool) -> dict[str, Any]:
    """Explain the output that ends last, and each output if there are several."""
    running = {} if job.finished else service.engine.view.metrics(job.seq_id)
    outputs = []
    for output in job.outputs:
        metrics = output.metrics or running.get(output.index)
        if metrics is not None:
            output_explanation = explain(
                metrics, now=time.monotonic(), finish_reason=output.finish_reason, sees_others=sees_others
            )
            outputs.append({"index": output.index} | output_explanation.to_dict())
    about = {"seq_id": job.seq_id, "status": job.status}
    if not outputs:  # submitted, but the prompt is not tokenized yet
        return about | Explanation([], {}, 0.0, None, None).to_dict()
    last = max(outputs, key=lambda fields: fields["e2e_s"])
    whole = {name: value for name, value in last.items() if name != "index"}
    return about | whole | ({"outputs": outputs} if len(job.outputs) > 1 else {})
