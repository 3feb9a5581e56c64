"""Routes of the script."""

from typing import Any

from fastapi import APIRouter, Request

from splitfuse.server.service import service_of

from .part import ScriptedAnswers
from .script import Script

router = APIRouter()


@router.put("/scripted")
async def begin(request: Request) -> None:
    """Follow the script of the body."""
    service_of(request).part(ScriptedAnswers).begin(Script(**await request.json()))


@router.get("/scripted")
async def said(request: Request) -> dict[str, list[Any]]:
    """Return the prompts, and the step that was said to each."""
    part = service_of(request).part(ScriptedAnswers)
    return {"prompts": part.prompts, "places": part.places}
