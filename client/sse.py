"""Parser of server-sent events by the WHATWG HTML standard (9.2.6); knows no HTTP and no JSON.

Chunks may end anywhere: inside a character, between CR and LF. An event without its final blank line is dropped.
"""

import codecs
from dataclasses import dataclass


@dataclass(frozen=True)
class ServerSentEvent:
    """Dispatched event; `id` is None if the event did not state its own."""

    data: str
    event: str = "message"
    id: str | None = None


class SSEParser:
    """Parser that takes chunks and returns the events that end in them."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._pending: list[str] = []  # parts of an unfinished line
        self._after_cr = False  # True if the last character was CR: a following LF belongs to it
        self._at_start = True  # True before the first character, where a byte order mark is dropped
        self._data: list[str] = []
        self._event = ""
        self._id: str | None = None

    def feed(self, chunk: bytes) -> list[ServerSentEvent]:
        """Return the events that end within this chunk."""
        text = self._decoder.decode(chunk)
        if self._at_start and text:
            text = text.removeprefix("\ufeff")
            self._at_start = False
        events = []
        for line in self._lines(text):
            event = self._take_line(line)
            if event is not None:
                events.append(event)
        return events

    def _lines(self, text: str) -> list[str]:
        if self._after_cr and text:
            text = text.removeprefix("\n")
            self._after_cr = False
        if not text:
            return []
        self._after_cr = text.endswith("\r")
        # not splitlines(), which also breaks at U+2028 and others: the standard leaves them inside a line
        *ended, rest = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        if ended:
            ended[0] = "".join(self._pending) + ended[0]
            self._pending = []
        if rest:
            self._pending.append(rest)
        return ended

    def _take_line(self, line: str) -> ServerSentEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")  # a comment is a line with an empty name
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
        return None

    def _dispatch(self) -> ServerSentEvent | None:
        data, event, event_id = self._data, self._event, self._id
        self._data, self._event, self._id = [], "", None
        if not data:
            return None
        return ServerSentEvent("\n".join(data), event or "message", event_id)
