"""A small Hugging Face hub for tests: one model of bytes in memory, over HTTP on this machine."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from answering import answering, reply

COMMIT = "c0" * 20


@contextmanager
def hub_of(model: str, files: Mapping[str, bytes], *, cuts: Sequence[int] = (), spoils: bool = False) -> Iterator[str]:
    """Serve the files of one model, `owner/name`; yields the value for HF_ENDPOINT.

    `cuts`: positions in each file at which the connection breaks, once each. `spoils`: contents have other hashes.
    """
    left = {name: [*cuts] for name in files}

    def answer(request: BaseHTTPRequestHandler) -> None:
        path = request.path.partition("?")[0]
        name = path.rpartition(f"/{COMMIT}/")[2] if COMMIT in path else path.rpartition("/main/")[2]
        if path.startswith(f"/api/models/{model}"):
            reply(request, body=json.dumps(_tree(files) if "/tree/" in path else _info(model, files)).encode())
        elif path.startswith(f"/{model}/resolve/") and name in files:
            headers = {"X_Repo_Commit": COMMIT, "ETag": f'"{_oid(files[name])}"', "Accept_Ranges": "bytes"}
            send_file(request, name, bytes(len(files[name])) if spoils else files[name], headers)
        else:
            request.send_error(404)

    def send_file(request: BaseHTTPRequestHandler, name: str, body: bytes, headers: Mapping[str, object]) -> None:
        """Answer a whole file or the rest from a position, up to the next cut."""
        wanted, total = request.headers.get("Range"), len(body)
        first, _, last = (wanted or "bytes=0-")[6:].partition("-")
        start, body = int(first), body[: int(last) + 1] if last else body
        extra = {"Content_Range": f"bytes {start}-{len(body) - 1}/{total}"} if wanted else {}
        ahead = [cut for cut in left[name] if cut > start and request.command != "HEAD"]
        length = len(body) - start
        part = body[start : ahead[0] if ahead else None]
        reply(request, 206 if wanted else 200, part, **{**headers, **extra, "Content_Length": length})
        if ahead:
            left[name].remove(ahead[0])

    with answering(answer) as url:
        yield url


def _oid(content: bytes) -> str:
    """Return the hash by which the hub names a content: SHA-256 for large files."""
    if len(content) > 1000:
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(content, usedforsecurity=False).hexdigest()


def _info(model: str, files: Mapping[str, bytes]) -> dict[str, Any]:
    return {"id": model, "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}


def _tree(files: Mapping[str, bytes]) -> list[dict[str, Any]]:
    return [{"type": "file", "oid": _oid(body), "size": len(body), "path": name} for name, body in files.items()]
