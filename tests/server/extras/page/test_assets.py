"""The page's files: they load nothing from elsewhere and make no markup of text."""

import re
from pathlib import Path

import pytest

from splitfuse.server.api.page_headers import wants_html
from splitfuse.server.extras.page.assets import asset, is_page, names

STATIC = Path(__file__).parents[4] / "server/extras/page/static"
MODULES = sorted(STATIC.glob("*.js"))
SHEETS = sorted(STATIC.glob("*.css"))
PAGES = sorted(STATIC.glob("*.html"))
NAMESPACE = re.compile(r'"http://www\.w3\.org/(2000/svg|1998/Math/MathML)"')  # a name, which nothing loads
MAX_BYTES = 150_000  # both pages, uncompressed; 6,500 of them typeset formulas
# What makes markup or code of text.
FORBIDDEN = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "setHTML", "srcdoc",
)  # fmt: skip


def test_every_file_is_served_with_the_strict_policy() -> None:
    entries = {"chat.html", "chat.js", "engine.html", "engine.js", "icon.svg", "theme.css"}
    assert entries <= names() == {path.name for path in STATIC.iterdir()}
    for name in names():
        response = asset(name)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "require-trusted-types-for 'script'" in policy
    assert sum(len(asset(name).body) for name in names()) < MAX_BYTES


@pytest.mark.parametrize("path", [*MODULES, *SHEETS, *PAGES], ids=lambda path: path.name)
def test_nothing_is_loaded_from_elsewhere_and_no_text_becomes_markup(path: Path) -> None:
    text = NAMESPACE.sub("", path.read_text("utf-8"))
    assert [word for word in FORBIDDEN if word in text] == []
    assert re.findall(r"https?://|\burl\(|@import|src=[\"']//", text) == []
    if path.suffix == ".html":
        assert re.findall(r"\son\w+=|style=|<script(?![^>]*src=)", text) == []
    assert len(text.splitlines()) < 300


def test_modules_import_each_other_and_nothing_else() -> None:
    for path in MODULES:
        text = path.read_text("utf-8")
        imports = re.findall(r'^import \{[^}\n]*\} from "\./([\w.]+)";$', text, re.M)
        assert len(imports) == len(re.findall(r"^import\b|\bimport\(", text, re.M)), path
        assert set(imports) <= names()


@pytest.mark.parametrize(
    ("path", "accept", "is_open"),
    [
        ("/", "text/html,application/xhtml+xml", True), ("/", "application/json", False), ("/", "*/*", False),
        ("/engine", "text/html", True), ("/engine/generate", "text/html", False), ("/page/engine.js", "*/*", True),
        ("/page/../generate", "text/html", False), ("/page/", "text/html", False), ("/generate", "text/html", False),
    ],
)  # fmt: skip
def test_only_the_page_itself_needs_no_key(path: str, accept: str, is_open: bool) -> None:
    headers = [(b"accept", accept.encode())]
    assert is_page({"type": "http", "path": path, "headers": headers}) is is_open


def test_a_browser_is_known_by_what_it_accepts() -> None:
    assert wants_html("text/HTML, */*")
    assert not wants_html("")
