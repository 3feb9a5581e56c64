"""Assets: files of the chat and the engine view, and headers that let them load and run nothing else."""

import re
from functools import cache
from importlib.resources import files

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from ...api.page_headers import page_headers, wants_html
from ...service import Service
from . import PageSettings

_COMMENT = re.compile(r"(?<=[;,{(\[})])  // .*")  # behind code
PREFIX = "/page/"
ENGINE = "/engine"
_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def compacted(text: str) -> str:
    """Return the text without comments, empty lines and the indentation."""
    lines = (_COMMENT.sub("", line).strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith(("//", "/*")))


@cache
def names() -> frozenset[str]:
    """Return the names of the page's files."""
    return frozenset(file.name for file in files(__package__).joinpath("static").iterdir())


def asset(name: str) -> Response:
    """Return one of the page's files, without what only readers of the source need."""
    return Response(_body(name), media_type=_MEDIA_TYPES[name.rpartition(".")[2]], headers=page_headers())


@cache
def _body(name: str) -> bytes:
    text = files(__package__).joinpath("static", name).read_text("utf-8")
    return compacted(text).encode()


def index(service: Service) -> Response | None:
    """Make the answer to a browser that opens /; None without the page."""
    return asset("chat.html") if service.settings.section(PageSettings).page else None


def is_open(service: Service, scope: Scope) -> bool:
    """True if the scope asks for a file of the page, where there is a page."""
    return service.settings.section(PageSettings).page and is_page(scope)


def is_page(scope: Scope) -> bool:
    """True if the request is for a file of the pages. These files hold no secrets; the key is typed into the page."""
    path: str = scope["path"]
    if path == "/":
        return wants_html(Headers(scope=scope).get("accept", ""))
    return path == ENGINE or (path.startswith(PREFIX) and path.removeprefix(PREFIX) in names())
