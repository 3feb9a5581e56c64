"""Chromium for tests, with pages that must load nothing from elsewhere and log no error."""

import contextlib
import shutil
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
LOCAL = ("http://127.0.0.1:", "data:", "blob:", "file:///")


@contextlib.contextmanager
def chromium(*arguments: str) -> Iterator[Any]:
    """Start a browser without a window; skip the test if there is none."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs Playwright: pip install 'splitfuse[dev]'")
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        pytest.skip("needs a Chromium: apt-get install chromium")
    with playwright.sync_playwright() as api:
        # No sandbox: tests may run as root, under which the sandbox does not start.
        browser = api.chromium.launch(executable_path=path, args=["--no-sandbox", *arguments])
        yield browser
        browser.close()


@contextlib.contextmanager
def watched_page(browser: Any, *, expected: tuple[str, ...] = (), **options: Any) -> Iterator[Any]:
    """Open a page in its own context; at the end, check it for unexpected console errors and requests elsewhere."""
    context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
    context.set_default_timeout(60_000)
    page = context.new_page()
    faults: list[str] = []
    page.on("pageerror", lambda error: faults.append(f"error: {error}"))
    page.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    page.on("request", lambda request: None if request.url.startswith(LOCAL) else faults.append(request.url))
    try:
        yield page
    finally:
        context.close()
    assert [fault for fault in faults if not any(text in fault for text in expected)] == []


def violations(page: Any) -> list[Any]:
    """Return the rules of axe that a page violates, and where; skip the test without axe."""
    pytest.importorskip("axe_playwright_python", reason="needs axe-core: pip install 'splitfuse[dev]'")
    page.evaluate(files("axe_playwright_python").joinpath("axe.min.js").read_text("utf-8"))
    found = page.evaluate("axe.run()")["violations"]
    return [(violation["id"], [node["html"] for node in violation["nodes"]]) for violation in found]
