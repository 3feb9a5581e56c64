"""Routes for adapters, for admins: load and unload, while requests run."""

from functools import partial
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from ....engine.errors import ConfigError, InvalidRequestError
from ...api.openapi import BODY, errors
from ...api.rights import require_changing_admin
from ...service import Service, service_of
from . import LoraSettings
from .request import LoadRequest, UnloadRequest

if TYPE_CHECKING:
    from ....engine.extras.lora.adapters import Adapters

router = APIRouter(prefix="/v1", tags=["adapters"], dependencies=[Depends(require_changing_admin)])
_CHANGE = errors(*BODY)


@router.post("/load_lora_adapter", response_description="Requests can name it as their model.", responses=_CHANGE)
async def load_lora_adapter(
    request: Request, body: Annotated[LoadRequest, Depends(LoadRequest.from_request)]
) -> Response:
    """Load an adapter. Its files are read and checked beside the running steps."""
    service = service_of(request)
    adapters = _adapters(service)
    path = body.folder(service.settings.section(LoraSettings).lora_dir)
    if not body.load_inplace and adapters.has(body.lora_name):
        raise InvalidRequestError(
            f"the adapter {body.lora_name!r} has already been loaded; unload it first, or send load_inplace",
            param="lora_name",
        )
    try:
        await adapters.in_thread(partial(adapters.add, body.lora_name, path, replaces=body.load_inplace))
    except ConfigError as exc:
        raise InvalidRequestError(str(exc), param="lora_path") from exc
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")


@router.post("/unload_lora_adapter", response_description="The name is free.", responses=_CHANGE)
async def unload_lora_adapter(
    request: Request, body: Annotated[UnloadRequest, Depends(UnloadRequest.from_request)]
) -> Response:
    """Unload an adapter. Unfinished requests keep it to their end."""
    _adapters(service_of(request)).remove(body.lora_name)
    return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")


def _adapters(service: Service) -> "Adapters":
    from ....engine.extras.lora.adapters import Adapters  # imports torch

    adapters = service.engine.part(Adapters)
    assert adapters is not None, "the routes are there with --enable-lora alone"
    return adapters
