"""Assets: files of the page."""

from functools import cache
from importlib.resources import files

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from ...api.page_headers import page_headers
from ...http.accept import wants_html
from ...service import Service
from .settings import PageSettings

PREFIX = "/page/"
_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}


@cache
def names() -> frozenset[str]:
    """Return the names of the page's files."""
    return frozenset(file.name for file in files(__package__).joinpath("static").iterdir())


def asset(name: str) -> Response:
    """Return one of the page's files."""
    media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
    body = files(__package__).joinpath("static", name).read_bytes()
    return Response(body, media_type=media_type, headers=page_headers())


def index(service: Service) -> Response | None:
    """Make the answer to a browser that opens /; None without the page."""
    return asset("index.html") if service.settings.section(PageSettings).page else None


def is_open(service: Service, scope: Scope) -> bool:
    """True if the scope asks for a file of the page, where there is a page."""
    return service.settings.section(PageSettings).page and is_page(scope)


def is_page(scope: Scope) -> bool:
    """True if the request is for a file of the page. These files hold no secrets; the key is typed into the page."""
    path: str = scope["path"]
    if path == "/":
        return wants_html(Headers(scope=scope).get("accept", ""))
    return path.startswith(PREFIX) and path.removeprefix(PREFIX) in names()
