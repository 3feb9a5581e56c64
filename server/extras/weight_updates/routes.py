"""Routes of an admin that change a running engine. The paths other than /weights are vLLM's."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from ....engine.errors import ConfigError, InvalidRequestError
from ...api.openapi import BODY, KEYED, errors
from ...api.rights import require_changing_admin
from ...http.json_response import JsonResponse
from ...service import Service, service_of
from . import WeightSettings
from .request import Level, Mode, Tags, WeightsRequest

if TYPE_CHECKING:
    from ....engine.extras.weight_updates.control import EngineControl

router = APIRouter(tags=["weights"], dependencies=[Depends(require_changing_admin)])
_CHANGE = errors(*BODY)
_STATE = errors(*KEYED, 503)


@router.post("/weights", response_description="The new version of the weights.", responses=_CHANGE)
async def weights(request: Request, body: Annotated[WeightsRequest, Depends(WeightsRequest.from_request)]) -> Response:
    """Change to the weights of a folder between two steps. They are read and checked beside the running steps.

    A request that runs meanwhile keeps its tokens, and computes all of them again with the new weights.
    """
    service, begin = service_of(request), time.monotonic()
    path = body.folder(service.settings.section(WeightSettings).weights_dir)
    control = _control(service)
    with _refusing():
        version = await control.update(path, mode=body.mode)
    seconds = {"seconds": time.monotonic() - begin, "hold_s": control.last_hold_s}
    return JsonResponse({"weights_version": version, **{name: round(value, 4) for name, value in seconds.items()}})


@router.post("/pause", response_description="No further step is taken.", responses=_CHANGE)
async def pause(request: Request, mode: Mode = "keep") -> Response:
    """Take no further step until /resume; requests wait."""
    service = service_of(request)
    await _control(service).pause(mode=mode)
    return _state(service)


@router.post("/resume", response_description="Steps are taken again, unless the engine sleeps.", responses=_STATE)
async def resume(request: Request) -> Response:
    """End a pause."""
    service = service_of(request)
    await _control(service).resume()
    return _state(service)


@router.post("/sleep", response_description="The memory is given back.", responses=_CHANGE)
async def sleep(request: Request, level: Level = 1, mode: Mode = "keep") -> Response:
    """Pause, and give back the memory of the cache (level 1), and of the weights (level 2); requests wait."""
    service = service_of(request)
    await _control(service).sleep(level, mode=mode)
    return _state(service)


@router.post("/wake_up", response_description="The engine is awake.", responses=_CHANGE)
async def wake_up(request: Request, tags: Tags = None) -> Response:
    """End the sleep. Weights that were given back are read again."""
    service = service_of(request)
    with _refusing():
        await _control(service).wake_up(tags)
    return _state(service)


@router.get("/is_sleeping", response_description="True while the engine sleeps.", responses=_STATE)
async def is_sleeping(request: Request) -> Response:
    """Tell if the engine sleeps."""
    return JsonResponse({"is_sleeping": service_of(request).engine.paused == "sleeping"})


@router.get("/is_paused", response_description="True while no step is taken.", responses=_STATE)
async def is_paused(request: Request) -> Response:
    """Tell if the engine takes no steps, asleep or not."""
    return JsonResponse({"is_paused": service_of(request).engine.paused is not None})


@contextmanager
def _refusing() -> Iterator[None]:
    try:
        yield
    except ConfigError as exc:
        raise InvalidRequestError(str(exc), param="path") from exc


def _state(service: Service) -> Response:
    engine = service.engine
    return JsonResponse({"paused": engine.paused, "weights_version": engine.weights_version})


def _control(service: Service) -> "EngineControl":
    from ....engine.extras.weight_updates.control import EngineControl  # imports torch

    return service.engine.state(EngineControl)
