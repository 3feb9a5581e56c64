"""HTTP requests as plain values, and what to make of the answers; sends nothing."""

import json
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import quote

from .errors import APIError, class_for, from_envelope

Prompt = str | Sequence[int]


def many(prompts: str | Sequence[Prompt]) -> list[Prompt]:
    """A single text as a list of one."""
    return [prompts] if isinstance(prompts, str) else list(prompts)


@dataclass(frozen=True)
class Request:
    """One HTTP request, its path relative to the server's base URL."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None

    @property
    def is_repeatable(self) -> bool:
        """Whether it may be sent again when nobody knows if it arrived."""
        return self.method == "GET"


@dataclass(frozen=True)
class Answer:
    """One HTTP answer; header names in lower case."""

    status: int
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""

    def raise_for_status(self) -> None:
        """Raise the error of the tree that the answer states, if it is one."""
        if 200 <= self.status < 300:
            return
        retry_after = seconds_to_wait(self.headers.get("retry-after"))
        try:
            envelope = json.loads(self.content)["error"]
        except (ValueError, KeyError, TypeError):  # a proxy's page, or nothing
            raise class_for(self.status)(
                f"the server answered {self.status}: {self._excerpt()}", status=self.status, retry_after=retry_after
            ) from None
        raise from_envelope(envelope, status=self.status, retry_after=retry_after)

    def json(self) -> Any:
        """The body of a good answer. Raises APIError where it is not JSON."""
        try:
            return json.loads(self.content)
        except ValueError as exc:
            raise APIError(
                f"the server answered {self.status} with something that is not JSON: {self._excerpt()}; "
                "is this a splitfuse server?",
                status=self.status,
            ) from exc

    def _excerpt(self) -> str:
        return repr(self.content[:120].decode("utf-8", "replace").strip())


def submit(prompt: Prompt, sampling: Mapping[str, Any]) -> Request:
    """POST /generate; None in `sampling` means "not said"."""
    body: dict[str, Any] = {"prompt": prompt if isinstance(prompt, str) else [operator.index(i) for i in prompt]}
    body.update((name, value) for name, value in sampling.items() if value is not None)
    # json's default escapes keep lone surrogates and NaN sendable: what is wrong with them is the server's to say
    return Request("POST", "/generate", {"content-type": "application/json"}, json.dumps(body).encode())


def read(seq_id: str, wait: float = 0.0) -> Request:
    """GET /result/{seq_id}, answered once the request is finished or `wait` seconds have passed."""
    query = f"?wait={wait:.3f}".rstrip("0").rstrip(".") if wait > 0 else ""
    return Request("GET", f"/result/{quote(seq_id, safe='')}{query}")


def attach(seq_id: str, starting_after: int | None) -> Request:
    """GET /result/{seq_id}/stream from the event after `starting_after`."""
    headers = {"accept": "text/event-stream"}
    if starting_after is not None:
        headers["last-event-id"] = str(starting_after)
    return Request("GET", f"/result/{quote(seq_id, safe='')}/stream", headers)


def cancel(seq_id: str) -> Request:
    """DELETE /result/{seq_id}."""
    return Request("DELETE", f"/result/{quote(seq_id, safe='')}")


def seconds_to_wait(retry_after: str | None, now: datetime | None = None) -> float | None:
    """A Retry-After header, seconds or an HTTP date, as seconds from now; None where it says nothing readable."""
    if retry_after is None:
        return None
    try:
        return max(0.0, float(retry_after)) if retry_after.strip().isdecimal() else _until(retry_after, now)
    except ValueError:
        return None


def _until(date: str, now: datetime | None) -> float:
    when = parsedate_to_datetime(date)
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())
