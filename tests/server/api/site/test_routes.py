"""The documentation site: its files at /docs/, beside the page of routes at /docs, without a key."""

import base64
import hashlib
import zipfile
from pathlib import Path

import pytest

from splitfuse.server.api import site
from splitfuse.server.api.site import routes
from splitfuse.server.app import build_app
from splitfuse.server.settings import Settings

SCRIPT = 'var a="b";'
FILES = {
    "index.html": f"<h1>Manual</h1><script>{SCRIPT}</script><script src='assets/a.js'></script>",
    "tutorials/streams/index.html": "<h1>Streams</h1>",
    "assets/a.js": "search()",
    "search.json": "{}",
}
KEY = "a-key-that-is-long-enough"


@pytest.fixture(autouse=True)
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an archive of four files, in the place of the wheel's."""
    path = tmp_path / "site.zip"
    with zipfile.ZipFile(path, "w") as file:
        for name, text in FILES.items():
            file.writestr(name, text)
    monkeypatch.setattr(site, "ARCHIVE", path)
    monkeypatch.setattr(routes, "ARCHIVE", path)
    routes._archive.cache_clear()
    return path


async def test_files_folders_and_nothing_else(served):
    for path, name, kind in [
        *(("", "index.html", "text/html"), ("index.html", "index.html", "text/html")),
        *(("assets/a.js", "assets/a.js", "text/javascript"), ("search.json", "search.json", "application/json")),
        ("tutorials/streams/", "tutorials/streams/index.html", "text/html"),
    ]:
        answer = await served.client.get(f"/docs/{path}")
        assert (answer.status_code, answer.text) == (200, FILES[name]), path
        assert answer.headers["content-type"].partition(";")[0] == kind
        assert answer.headers["x-content-type-options"] == "nosniff"
    answer = await served.client.get("/docs/tutorials/streams?q=1")
    assert (answer.status_code, answer.headers["location"]) == (307, "streams/")
    assert "openapi.json" in (await served.client.get("/docs")).text, "the routes are still there"
    for name in ("nothing", "tutorials", "../index.html", "%2e%2e/settings.py", "index.html/x", "a%00b"):
        assert (await served.client.get(f"/docs/{name}")).status_code == 404, name


async def test_its_own_scripts_run_alone(served):
    policy = (await served.client.get("/docs/")).headers["content-security-policy"]
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    assert f"script-src 'self' 'sha256-{digest}';" in policy
    assert "default-src 'none'" in policy


@pytest.mark.parametrize("settings", [Settings(api_key=(KEY,))])
async def test_no_key_is_needed_but_one_is_asked_for_elsewhere(served):
    statuses = {path: (await served.client.get(path)).status_code for path in ("/docs/", "/docs/search.json", "/docs")}
    assert statuses == {"/docs/": 200, "/docs/search.json": 200, "/docs": 401}


def test_without_an_archive_it_is_not_served(archive):
    archive.unlink()
    assert "site" not in {extension.name for extension in build_app(Settings()).state.service.extensions.used}
