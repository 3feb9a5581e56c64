"""A small Hugging Face hub for tests: one model of bytes in memory, over HTTP on this machine."""

import hashlib
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

COMMIT = "c0" * 20


@contextmanager
def hub_of(model: str, files: Mapping[str, bytes], *, cuts: Sequence[int] = (), spoils: bool = False) -> Iterator[str]:
    """Serve the files of one model, `owner/name`; yields the value for HF_ENDPOINT.

    `cuts`: positions in each file at which the connection breaks, once each. `spoils`: contents have other hashes.
    """
    left = {name: [*cuts] for name in files}

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
                headers = {"X-Repo-Commit": COMMIT, "ETag": f'"{_oid(files[name])}"', "Accept-Ranges": "bytes"}
                body = bytes(len(files[name])) if spoils else files[name]
                self._send_file(name, body, headers, with_body)
            else:
                self.send_error(404)

        def _send_file(self, name: str, body: bytes, headers: Mapping[str, str], with_body: bool) -> None:
            """Answer a whole file or the rest from a position, up to the next cut."""
            wanted, total = self.headers.get("Range"), len(body)
            first, _, last = (wanted or "bytes=0-")[6:].partition("-")
            start, body = int(first), body[: int(last) + 1] if last else body
            self.send_response(206 if wanted else 200)
            extra = {"Content-Range": f"bytes {start}-{len(body) - 1}/{total}"} if wanted else {}
            for key, value in {**headers, **extra, "Content-Length": str(len(body) - start)}.items():
                self.send_header(key, value)
            self.end_headers()
            if with_body:
                ahead = [cut for cut in left[name] if cut > start]
                self.wfile.write(body[start : ahead[0] if ahead else None])
                if ahead:
                    left[name].remove(ahead[0])
                    self.close_connection = True

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
    """Return the hash by which the hub names a content: SHA-256 for large files."""
    if len(content) > 1000:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def _info(model: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    return {"id": model, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}


def _tree(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    return [{"type": "file", "oid": _oid(body), "size": len(body), "path": name} for name, body in files.items()]
