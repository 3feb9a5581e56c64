"""A page of another origin, in a Chromium: `python tests/clients/browser_page.py BASE_URL`.

Needs a Chromium (apt-get install chromium), and a server without a key, since an EventSource cannot send one, with
--allowed-origins http://localhost:8960, where this script serves the page.
"""

import json
import shutil
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

from checks import key, main, model_of
from playwright.sync_api import sync_playwright

PORT = 8960  # port of --allowed-origins in __main__.py
CHROMIUMS = ("chromium", "chromium-browser", "google-chrome")
ASK = """async ([url, key, path, body]) => {
  const headers = {Authorization: `Bearer ${key}`, 'Content-Type': 'application/json'};
  const answer = await fetch(url + path, {method: body ? 'POST' : 'GET', headers, body: body && JSON.stringify(body)});
  return [answer.status, answer.headers.get('X-Request-Id'), await answer.text()];
}"""
REFUSED = """async ([url]) => {
  try { await fetch(url + '/v1/models'); } catch (error) { return error.name; }
  return 'answered';
}"""
SOURCE = """([url]) => new Promise((resolve, reject) => {
  const [source, kinds] = [new EventSource(url), []];
  source.addEventListener('token', () => kinds.push('token'));
  source.addEventListener('done', () => { source.close(); resolve([...kinds, 'done']); });
  source.onerror = () => { source.close(); reject(new Error('no events')); };
})"""


class Page(BaseHTTPRequestHandler):
    """Handler of an empty page."""

    def do_GET(self) -> None:
        """Answer."""
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>page</title>")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


class Checks:
    """Checks of the client: one method per check, run in this order."""

    def __init__(self, url: str) -> None:
        self._url, self._name = url, model_of(url)
        server = HTTPServer(("127.0.0.1", PORT), Page)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        program = next(filter(None, map(shutil.which, CHROMIUMS)))
        browser = sync_playwright().start().chromium.launch(executable_path=program, args=["--no-sandbox"])
        self._page, self._other = browser.new_page(), browser.new_page()
        self._page.goto(f"http://localhost:{PORT}")
        self._other.goto(f"http://127.0.0.1:{PORT}")

    def models(self) -> None:
        status, request_id, _ = self._ask("/v1/models")
        assert status == 200
        assert request_id

    def chat(self) -> None:
        status, _, text = self._ask("/v1/chat/completions", self._asked())
        assert status == 200, text

    def stream(self) -> None:
        status, _, text = self._ask("/v1/chat/completions", {**self._asked(), "stream": True})
        assert status == 200
        assert text.endswith("data: [DONE]\n\n")

    def generate_and_result(self) -> None:
        status, _, text = self._ask("/generate", {"prompt": "Once", "max_tokens": 4, "stream": True})
        assert status == 200
        assert "event: done" in text

    def errors_can_be_read(self) -> None:
        status, _, text = self._ask("/v1/chat/completions", {**self._asked(), "model": "another"})
        assert status == 404
        assert "not served here" in text

    def event_source(self) -> None:
        _, _, text = self._ask("/generate", {"prompt": "Once", "max_tokens": 4, "ignore_eos": True})
        assert self._page.evaluate(SOURCE, [self._url + json.loads(text)["stream_url"]]) == ["token"] * 4 + ["done"]

    def another_origin_is_refused(self) -> None:
        assert self._other.evaluate(REFUSED, [self._url]) == "TypeError"

    def _asked(self) -> dict[str, Any]:
        return {"model": self._name, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}

    def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return self._page.evaluate(ASK, [self._url, key(), path, body])


if __name__ == "__main__":
    sys.exit(main(Checks, "playwright"))
