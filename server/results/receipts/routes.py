"""POST /verify: checks a receipt in one pass over its tokens, beside other requests."""

import asyncio
from typing import Annotated, Any, ClassVar

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import Response

from ....engine.extras.receipts.receipt import Receipt
from ....engine.extras.receipts.verification import verify
from ...api.openapi import GENERATION, errors
from ...api.request_model import ModelName, RequestModel
from ...http.auth import owner_of
from ...http.disconnect import unless_disconnected
from ...http.json_response import JsonResponse
from ...service import service_of
from .part import Receipts

router = APIRouter(tags=["receipts"])


class VerifyRequest(RequestModel):
    """A receipt to check."""

    example: ClassVar = {"receipt": {}}
    model: ModelName = None
    receipt: dict[str, Any]


@router.post(
    "/verify",
    response_description="`valid`, and `first_mismatch`: the position of the first token that does not follow.",
    responses=errors(*GENERATION),
)
async def verify_receipt(
    request: Request, body: Annotated[VerifyRequest, Depends(VerifyRequest.from_request)]
) -> Response:
    """Check a receipt: its hash, and every token of its answer."""
    service = service_of(request)
    receipt = await asyncio.to_thread(Receipt.read, body.receipt)
    identity = await service.part(Receipts).prepare()
    work = verify(service.engine, receipt, identity, tenant=owner_of(request))
    return JsonResponse((await unless_disconnected(request.receive, work)).to_dict())
