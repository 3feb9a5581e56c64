"""POST /results/backup: a copy of the results file by the connection that writes it, while the server goes on."""

import time
from pathlib import Path
from typing import Annotated, ClassVar

from fastapi import APIRouter, Depends
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from ....engine.errors import InvalidRequestError
from ...api.openapi import BODY, errors
from ...api.request_model import RequestModel, ServerPath
from ...api.rights import require_changing_admin
from ...http.json_response import JsonResponse
from ...service import service_of
from .part import DurablePart
from .store import BackupError

router = APIRouter(tags=["operations"], dependencies=[Depends(require_changing_admin)])


class BackupRequest(RequestModel):
    """File to make."""

    example: ClassVar = {"path": "/backups/results.db"}
    location: Annotated[ServerPath, Field(alias="path", description="New file on the server's machine.")]


@router.post("/results/backup", response_description="The copy's path and size.", responses=errors(*BODY))
async def backup(request: Request, body: Annotated[BackupRequest, Depends(BackupRequest.from_request)]) -> Response:
    """Copy the results file. Everything that a client has been told of before is in the copy.

    Events of kept results wait meanwhile: 0.1 s for 10 MB. A server whose `--results` is the copy goes on from there.
    """
    path, begin = Path(body.location), time.monotonic()
    if not path.is_absolute() or "\0" in body.location:
        raise InvalidRequestError("path must be absolute, on the server's machine", param="path")
    try:
        num_bytes = await service_of(request).part(DurablePart).backend.use(lambda store: store.backup(path))
    except BackupError as exc:
        raise InvalidRequestError(str(exc), param="path") from exc
    return JsonResponse({"path": str(path), "bytes": num_bytes, "seconds": round(time.monotonic() - begin, 3)})
