"""/docs: a page of our own that shows /openapi.json. It loads nothing else, so it works without internet."""

from importlib.resources import files

from fastapi import APIRouter
from starlette.responses import HTMLResponse

router = APIRouter(include_in_schema=False)


@router.get("/docs")
async def docs() -> HTMLResponse:
    """The page."""
    return HTMLResponse(files(__package__).joinpath("docs.html").read_text("utf-8"))
