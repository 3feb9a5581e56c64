"""/ is an extension's page, or JSON that lists the routes; /docs is a page that shows /openapi.json.

Both work without internet: they load nothing from other servers.
"""

from html import escape
from importlib.resources import files
from typing import Annotated

from fastapi import APIRouter, Header
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from .. import package_version
from ..http.json_response import JsonResponse
from ..service import service_of
from .page_headers import page_headers, source_of, wants_html

router = APIRouter(include_in_schema=False)
_INDEX = """<!doctype html>
<meta charset="utf-8"><title>splitfuse</title>
<h1>splitfuse {version}</h1>
<p>Serves <b>{model}</b>: POST /generate, POST /v1/chat/completions and others.</p>
<ul><li><a href="/docs">/docs</a>: all routes and their fields</li><li><a href="/v1/models">/v1/models</a></li>
<li><a href="/stats">/stats</a></li><li><a href="/metrics">/metrics</a></li></ul>
"""


@router.head("/")
@router.get("/")
async def index(request: Request, accept: Annotated[str, Header()] = "") -> Response:
    """Return the page, or an index of the model and the routes."""
    service, version = service_of(request), package_version()
    model = service.settings.model_name
    if wants_html(accept):
        if (page := service.extensions.first("index")) is not None and (answer := page(service)) is not None:
            assert isinstance(answer, Response)
            return answer
        nothing = page_headers(script="'none'", style="'none'")
        return HTMLResponse(_INDEX.format(model=escape(model), version=version), headers=nothing)
    paths = request.app.openapi()["paths"]
    routes = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    return JsonResponse({"name": "splitfuse", "version": version, "model": model, "routes": routes, "docs": "/docs"})


@router.get("/docs")
async def docs() -> Response:
    """Return the page that shows /openapi.json."""
    page = files(__package__).joinpath("docs.html").read_text("utf-8")
    headers = page_headers(script=source_of(page, "script"), style=source_of(page, "style"))
    return HTMLResponse(page, headers=headers)
