"""Files of the documentation site, read from its archive. They hold no secrets and need no key."""

import re
import zipfile
from functools import cache
from mimetypes import guess_type

from fastapi import APIRouter
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import Scope

from ...service import Service
from ..page_headers import page_headers, source_of
from . import ARCHIVE

router = APIRouter(include_in_schema=False)
_PREFIX = "/docs/"
_SCRIPTS = re.compile("<script>.*?</script>", re.DOTALL)


@router.head(_PREFIX + "{name:path}")
@router.get(_PREFIX + "{name:path}")
async def page(request: Request, name: str) -> Response:
    """Return a file of the site. A folder is its index.html, and its links start below it: behind a slash."""
    if name in _archive().namelist():
        return _answer(name)
    index = f"{name}/index.html"
    if index not in _archive().namelist():
        raise HTTPException(404)
    if not request.scope["raw_path"].endswith(b"/"):
        return RedirectResponse(f"{name.rpartition('/')[2]}/")
    return _answer(index)


def home(service: Service) -> Response:
    """Return the site's first page."""
    return _answer("index.html")


def is_open(service: Service, scope: Scope) -> bool:
    """True if the scope asks for a file of the site."""
    return bool(scope["path"].startswith(_PREFIX))


@cache
def _archive() -> zipfile.ZipFile:
    return zipfile.ZipFile(ARCHIVE)


def _answer(name: str) -> Response:
    body = _archive().read(name)
    scripts = [source_of(text, "script") for text in _SCRIPTS.findall(body.decode())] if name.endswith(".html") else []
    # The search builds its results as markup; alignment of tables is in attributes.
    headers = page_headers(script=" ".join(["'self'", *scripts]), style="'self' 'unsafe-inline'", makes_markup=True)
    return Response(body, media_type=guess_type(name)[0] or "application/octet-stream", headers=headers)
