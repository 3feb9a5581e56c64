"""Stream events, and a reader that delivers every event exactly once, over any number of connections."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from .errors import APIError, from_envelope
from .results import Result, read_result
from .sse import ServerSentEvent, SSEParser


@dataclass(frozen=True)
class StreamEvent:
    """Event of a stream: new text of output `index`, or at the end type "done" with `result` and without text."""

    type: Literal["token", "done"] = "token"
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    index: int = 0
    logprobs: Any = None
    id: int | None = None
    result: Result | None = None


class EventReader:
    """Reader of the chunks of one connection after another, with a call of `reattach` between two connections."""

    def __init__(self, starting_after: int | None = None) -> None:
        self.last_event_id = starting_after
        self._parser = SSEParser()

    def reattach(self) -> None:
        """Begin a new connection. A half-read event of the old one is dropped: the server sends it again."""
        self._parser = SSEParser()

    def feed(self, chunk: bytes) -> Iterator[StreamEvent]:
        """Yield new events in order. Raises the APIError of an `error` event, and one for an unreadable event."""
        for raw in self._parser.feed(chunk):
            event_id = _number(raw.id)
            if event_id is not None:
                if self.last_event_id is not None and event_id <= self.last_event_id:
                    continue  # delivered before the connection broke
                self.last_event_id = event_id
            event = _read(raw, event_id)
            if event is not None:
                yield event


def _number(event_id: str | None) -> int | None:
    return int(event_id) if event_id and event_id.isascii() and event_id.isdecimal() else None


def _read(raw: ServerSentEvent, event_id: int | None) -> StreamEvent | None:
    if raw.event not in ("token", "done", "error"):
        return None  # an event of a newer server
    data = read_object(raw.data)
    if raw.event == "error":
        raise from_envelope(data.get("error", data))
    if raw.event == "done":
        return StreamEvent(type="done", id=event_id, result=read_result(data))
    return StreamEvent(
        text=data.get("text") or "",
        token_ids=data.get("token_ids") or [],
        index=data.get("index") or 0,
        logprobs=data.get("logprobs"),
        id=event_id,
    )


def read_object(text: str) -> dict[str, Any]:
    """Return the JSON object of an event. Raises APIError."""
    try:
        data = json.loads(text)
    except ValueError as exc:
        raise APIError(f"the stream carried an event that is not JSON: {text[:80]!r}") from exc
    if not isinstance(data, dict):
        raise APIError(f"the stream carried an event that is not a JSON object: {text[:80]!r}")
    return data
