"""Routes for operators and tools: health, readiness, version, metrics, statistics and the tokenizer."""

from fastapi import APIRouter, Depends
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from .. import package_version
from ..http.errors import NotReadyError, describe
from ..http.json_response import JsonResponse
from ..service import Service, service_of
from .openapi import ALWAYS, KEYED, errors
from .rights import caller_of, require_reader_of_sums

router = APIRouter(tags=["operations"])


@router.head("/health", include_in_schema=False)
@router.get("/health", response_description="The engine makes progress.", responses=errors(*ALWAYS, 503))
async def health(request: Request) -> Response:
    """200 while the engine makes progress, even if the server is draining or cannot write results."""
    service = service_of(request)
    fault, count = _fault(service), {"num_unfinished": service.num_unfinished}
    if fault is None:
        return JsonResponse({"status": "ok"} | count)
    problem = describe(fault)
    body = problem.envelope() | {"code": problem.code} | count
    return JsonResponse(body, status_code=problem.status, headers=dict(problem.headers))


def _fault(service: Service) -> NotReadyError | None:
    """Return the gravest reason why the server is unhealthy, None if it is healthy."""
    if service.state not in ("ready", "draining"):
        return service.lifecycle.not_ready()
    if not service.engine.is_healthy:
        return NotReadyError("the engine makes no progress", code="stalled")
    if service.engine.is_failing:
        return NotReadyError("the last requests have all failed; the server's log says why", code="failing")
    return None


@router.head("/ready", include_in_schema=False)
@router.get("/ready", response_description="The server accepts new work.", responses=errors(*ALWAYS, 503))
async def ready(request: Request) -> Response:
    """200 while the server accepts new work."""
    service = service_of(request)
    if service.state != "ready":
        return describe(service.lifecycle.not_ready()).response()
    if service.results.backend.failure is not None:
        fault = NotReadyError("results cannot be written; the server's log says why", code="store")
        return describe(fault).response()
    if (reason := service.engine.paused) is not None:
        way_out = {"paused": "POST /resume", "sleeping": "POST /wake_up"}[reason]
        return describe(NotReadyError(f"the engine is {reason} until {way_out}; requests wait", code=reason)).response()
    return JsonResponse({"status": "ready"})


@router.head("/version", include_in_schema=False)
@router.get("/version", response_description="The version.", responses=errors(*ALWAYS))
async def version(request: Request) -> Response:
    """The version of splitfuse, if answers are exact (no schedule changes a bit of them), and the weights' version."""
    service = service_of(request)
    engine = service.lifecycle.loaded
    is_exact = service.state == "ready" and service.engine.loaded.inexact is None
    version = engine.weights_version if engine else 0
    return JsonResponse({"version": package_version(), "exact": is_exact, "weights_version": version})


@router.get(
    "/metrics",
    dependencies=[Depends(require_reader_of_sums)],
    response_class=PlainTextResponse,
    response_description="Prometheus' text format.",
    responses=errors(*KEYED),
)
async def metrics(request: Request) -> Response:
    """Metrics in Prometheus' text format."""
    return Response(service_of(request).metrics.render(), media_type=CONTENT_TYPE_LATEST)


@router.get("/stats", response_description="The snapshot.", responses=errors(*KEYED))
async def stats(request: Request) -> Response:
    """A snapshot of requests, blocks and the last steps. A key that is no admin's gets its own numbers alone."""
    service, caller = service_of(request), caller_of(request)
    about = {"model": service.settings.model_name, "version": package_version(), "state": service.state}
    figures = _all_figures(service) if caller.is_admin else _own_figures(service, caller.owner)
    return JsonResponse(about | figures)


def _all_figures(service: Service) -> dict[str, object]:
    results = service.results
    return {"num_results": len(results), "num_result_bytes": results.num_bytes} | service.engine_stats()


def _own_figures(service: Service, owner: str) -> dict[str, object]:
    results, engine = service.results.index, service.lifecycle.loaded
    figures: dict[str, object] = {
        "num_result_bytes": results.num_bytes_of(owner),
        "num_results": sum(1 for _ in results.of(owner)),
    }
    return figures | ({} if engine is None else engine.view.counts_of(owner))
