"""A small Hugging Face hub for tests: one model of bytes in memory, over HTTP on this machine."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c0" * 20


@contextmanager
def hub_of(model: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Serve the files of one model, `owner/name`; yields the value for HF_ENDPOINT."""

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            path = self.path.partition("?")[0]
            name = path.rpartition(f"/{COMMIT}/")[2] if COMMIT in path else path.rpartition("/main/")[2]
            if path.startswith(f"/api/models/{model}"):
                self._send(
                    json.dumps(_tree(files) if "/tree/" in path else _info(model, files)).encode(), {}, with_body
                )
            elif path.startswith(f"/{model}/resolve/") and name in files:
                headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_oid(files[name])}"'}
                self._send(files[name], headers, with_body)
            else:
                self.send_error(404)

        def _send(self, body: bytes, headers: Mapping[str, str], with_body: bool) -> None:
            self.send_response(200)
            for key, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                self.wfile.write(body)

        def log_message(self, *args: Any) -> None:
            """Print nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _oid(content: bytes) -> str:
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def _info(model: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    return {"id": model, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}


def _tree(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    return [{"type": "file", "oid": _oid(body), "size": len(body), "path": name} for name, body in files.items()]
