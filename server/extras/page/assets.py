"""Assets: files of the chat and the engine view, and headers that let them load and run nothing else."""

import re
from collections.abc import Iterator
from functools import cache
from importlib.resources import files

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Scope

from ...api.page_headers import page_headers, wants_html
from ...service import Service
from . import PageSettings

_COMMENT = re.compile(r"(?<=[;,{(\[})])  // .*")  # behind code
_STYLE_SPACE = re.compile(r" ?([{};,]|(?<=[a-z-]):(?= )) ?")
_SCRIPT_SPACE = re.compile(r" ?([=<>&|?:,{}()\[\]!*%;]+) ?| ([-+]) (?![-+])")
_TEXT = re.compile(r'("(?:[^"\\]|\\.)*"|`[^`]*`)')
# Line breaks between the lines of one declaration. Imports and exports keep their lines, by which saved.js finds them.
_BREAK = re.compile(r"([,;(\[{}])\n(?!(?:export|import|const|function|class)\b)")
PREFIX = "/page/"
ENGINE = "/engine"
_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


def compacted(text: str, suffix: str) -> str:
    """Return the text of a file of this suffix without comments and needless spaces."""
    lines = _lines(text)
    if suffix == "css":
        return "".join(_STYLE_SPACE.sub(r"\1", line) for line in lines)
    if suffix == "js":
        return _BREAK.sub(r"\1", "\n".join(map(_script_line, lines)))
    return "\n".join(lines)


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines():
        line = _COMMENT.sub("", line).strip()
        if line and not line.startswith(("//", "/*")):
            yield line


def _script_line(line: str) -> str:
    """Return the line without needless spaces, or as it is if spaces could be text there."""
    parts = _TEXT.split(line)  # code, text, code, …
    has_regex = any("/" in part.replace(" / ", "") for part in parts[::2])
    if has_regex or line.startswith("import ") or line.count("`") > 2 or any("`" in part for part in parts[::2]):
        return line
    parts[::2] = [_SCRIPT_SPACE.sub(r"\1\2", part) for part in parts[::2]]
    return "".join(parts)


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
    return compacted(text, name.rpartition(".")[2]).encode()


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
