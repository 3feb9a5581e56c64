"""POST /result/{seq_id}/stop_thinking."""

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ....engine.extras.thinking.part import Thinking
from ...api.native.request import SeqId
from ...api.openapi import LOOKUP, errors
from ...http.auth import owner_of
from ...http.errors import NotThinkingError
from ...http.json_response import JsonResponse
from ...jobs.result_store import seq_id_of
from ...service import service_of
from .part import RunningJobs

router = APIRouter(tags=["native"])


@router.post(
    "/result/{seq_id}/stop_thinking",
    response_description="`thinking_tokens`: the budget that gives this answer again.",
    responses=errors(*LOOKUP, 409),
)
async def stop_thinking(request: Request, seq_id: SeqId) -> Response:
    """End the reasoning of a running answer: its closing comes next, and the answer goes on."""
    service, owner = service_of(request), owner_of(request)
    known = seq_id_of(seq_id)
    job = service.part(RunningJobs).get(known, owner=owner) or await service.results.find(known, owner=owner)
    part = service.engine.part(Thinking)

    async def record(num_tokens: int) -> None:
        job.was_changed = True
        await service.results.amend(job, thinking_budget=num_tokens)

    running = None if job.finished or part is None else part.stop(service.engine, job.seq_id, record=record)
    if running is None or (num_tokens := await running) is None:
        raise NotThinkingError
    return JsonResponse({"seq_id": job.seq_id, "thinking_tokens": num_tokens})
