"""Messages of the native endpoints: HTTP requests as plain values, and the reading of answers. Sends nothing."""

import json
import operator
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

from .errors import APIError, class_for, from_envelope
from .retry import read_retry_after

Prompt = str | Sequence[int]
IDEMPOTENCY_KEY = "Idempotency-Key"  # a server runs requests with equal keys only once
PAGE_SIZE = 100  # the server's maximum


@dataclass(frozen=True)
class Request:
    """HTTP request; the path is relative to the server's base URL."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None

    @property
    def is_repeatable(self) -> bool:
        """True if the request may be repeated without knowing whether the server received it."""
        return self.method == "GET" or IDEMPOTENCY_KEY in self.headers


@dataclass(frozen=True)
class Answer:
    """HTTP answer."""

    status: int
    headers: Mapping[str, str]
    content: bytes = b""

    def raise_for_status(self) -> None:
        """Raise the APIError that the answer states, unless its status is 2xx."""
        if 200 <= self.status < 300:
            return
        retry_after = read_retry_after(self.headers.get("retry-after"))
        try:
            envelope = json.loads(self.content)["error"]
        except (ValueError, KeyError, TypeError):  # a proxy's page, or an empty body
            raise class_for(self.status)(
                f"the server answered {self.status}: {self._excerpt()}", status=self.status, retry_after=retry_after
            ) from None
        raise from_envelope(envelope, status=self.status, retry_after=retry_after)

    def json(self) -> Any:
        """Return the body of a good answer. Raises APIError if the body is not JSON."""
        try:
            return json.loads(self.content)
        except ValueError as exc:
            raise APIError(
                f"the server answered {self.status} with something that is not JSON: {self._excerpt()}; "
                "is this a splitfuse server?",
                status=self.status,
            ) from exc

    def seq_id(self) -> str:
        """Return the id in the answer to `submit`. Raises APIError if there is none."""
        body = self.json()
        seq_id = body.get("seq_id") if isinstance(body, dict) else None
        if not isinstance(seq_id, str):
            raise APIError("the server's answer to POST /generate has no seq_id; is this a splitfuse server?")
        return seq_id

    def raise_unless_stream(self) -> None:
        """Raise an APIError unless the answer to `attach` is an event stream."""
        self.raise_for_status()
        if "text/event-stream" not in self.headers.get("content-type", ""):
            raise APIError("the server's stream is not text/event-stream; is this a splitfuse server?")

    def _excerpt(self) -> str:
        return repr(self.content[:120].decode("utf-8", "replace").strip())


def submit(prompt: Prompt, sampling: Mapping[str, Any], idempotency_key: str | None = None) -> Request:
    """Return POST /generate, which may be repeated; fields of `sampling` that are None are left out."""
    body: dict[str, Any] = {"prompt": prompt if isinstance(prompt, str) else [operator.index(i) for i in prompt]}
    body.update((name, value) for name, value in sampling.items() if value is not None)
    # json's default escapes can send lone surrogates and NaN: the server refuses them
    headers = {"content-type": "application/json", IDEMPOTENCY_KEY: idempotency_key or secrets.token_urlsafe(24)}
    return Request("POST", "/generate", headers, json.dumps(body).encode())


def read(seq_id: str, wait: float) -> Request:
    """Return GET /result/{seq_id}, answered once the request is finished or `wait` seconds have passed."""
    query = f"?wait={wait:.3f}".rstrip("0").rstrip(".") if wait > 0 else ""
    return Request("GET", f"/result/{quote(seq_id, safe='')}{query}")


def attach(seq_id: str, starting_after: int | None) -> Request:
    """Return GET /result/{seq_id}/stream from the event after `starting_after`."""
    headers = {"accept": "text/event-stream"}
    if starting_after is not None:
        headers["last-event-id"] = str(starting_after)
    return Request("GET", f"/result/{quote(seq_id, safe='')}/stream", headers)


def tokens(seq_id: str, *, top: int, output: int) -> Request:
    """Build the request for a kept answer's tokens with their alternatives."""
    return Request("GET", f"/result/{quote(seq_id, safe='')}/tokens?top={top}&output={output}")


def results(*, status: str | None, after: str | None) -> Request:
    """Return GET /results: the page that follows the result `after`."""
    query = {"limit": PAGE_SIZE, "status": status, "after": after}
    return Request("GET", f"/results?{urlencode({name: value for name, value in query.items() if value is not None})}")


def verify(receipt: Mapping[str, Any]) -> Request:
    """Return POST /verify."""
    return Request("POST", "/verify", {"content-type": "application/json"}, json.dumps({"receipt": receipt}).encode())


def delete_results() -> Request:
    """Return DELETE /results."""
    return Request("DELETE", "/results")


def post(path: str, body: Mapping[str, Any] | None = None) -> Request:
    """Return a POST that is not repeated after a lost connection."""
    content = None if body is None else json.dumps(body).encode()
    return Request("POST", path, {"content-type": "application/json"}, content)


def batch_file(endpoint: str, bodies: Sequence[Mapping[str, Any]]) -> Request:
    """Return POST /v1/files with a line for each body, whose custom_id is its place."""
    heads = ({"custom_id": str(place), "method": "POST", "url": endpoint} for place in range(len(bodies)))
    lines = "\n".join(json.dumps({**head, "body": dict(body)}) for head, body in zip(heads, bodies, strict=True))
    parts = {'"purpose"': "batch", '"file"; filename="batch.jsonl"': lines}
    boundary = secrets.token_hex(16)
    form = "".join(
        f"--{boundary}\r\nContent-Disposition: form-data; name={name}\r\n\r\n{text}\r\n" for name, text in parts.items()
    )
    headers = {"content-type": f"multipart/form-data; boundary={boundary}"}
    return Request("POST", "/v1/files", headers, f"{form}--{boundary}--\r\n".encode())


def batch_answers(content: bytes) -> dict[int, Any]:
    """Read a batch's file of answers or of errors: bodies by their place, those of errors as {"error": …}."""
    lines = map(json.loads, content.splitlines())
    return {int(line["custom_id"]): line["response"]["body"] if line["response"] else line for line in lines}


def stop_thinking(seq_id: str) -> Request:
    """Return POST /result/{seq_id}/stop_thinking."""
    return Request("POST", f"/result/{quote(seq_id, safe='')}/stop_thinking")


def cancel(seq_id: str) -> Request:
    """Return DELETE /result/{seq_id}."""
    return Request("DELETE", f"/result/{quote(seq_id, safe='')}")
