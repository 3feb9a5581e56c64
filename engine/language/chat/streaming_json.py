"""JSON while its text still streams in: the end of a value, and the entries of an object. Checks nothing else."""

import json
from collections.abc import Iterator
from typing import NamedTuple

_SPACE = " \t\r\n"
_FOLLOWING = {  # states of ObjectReader after a character
    ("start", "{"): "first key",
    ("first key", '"'): "key",
    ("first key", "}"): "done",
    ("next key", '"'): "key",
    ("colon", ":"): "value start",
    ("after value", ","): "next key",
    ("after value", "}"): "done",
}


class Entry(NamedTuple):
    """Next raw text of a key's value; `is_end`: the value is complete."""

    key: str
    text: str
    is_end: bool


class ValueReader:
    """Finder of one value's end, by its brackets and quotes."""

    def __init__(self) -> None:
        self.is_over = False
        self._depth = 0
        self._in_string = False
        self._is_escaped = False

    def take(self, text: str, start: int = 0) -> str:
        """Return the text from `start` on that belongs to the value."""
        for position in range(start, len(text)):
            end = self._end_at(text[position])
            if end is not None:
                self.is_over = True
                return text[start : position + end]
        return text[start:]

    def _end_at(self, char: str) -> int | None:
        """Return 1 if this character ends the value, 0 if the character before it did, else None."""
        if self._is_escaped:
            self._is_escaped = False
        elif self._in_string:
            self._is_escaped = char == "\\"
            self._in_string = char != '"'
            return 1 if not self._in_string and not self._depth else None
        elif char == '"':
            self._in_string = True
        elif char in "[{":
            self._depth += 1
        elif self._depth:
            self._depth -= char in "]}"
            return None if self._depth else 1
        elif char in ",]}" + _SPACE:  # after a number or a literal
            return 0
        return None


class ObjectReader:
    """Reader of text that begins with an object. `state` "done" or "broken" ends it; `rest` is the unread text."""

    def __init__(self) -> None:
        self.state = "start"
        self.rest = ""
        self._key = ""
        self._token = ""  # current key so far, with its quotes
        self._value = ValueReader()  # of the current key or value

    @property
    def is_over(self) -> bool:
        """True if the reader takes no more text."""
        return self.state in ("done", "broken")

    def push(self, text: str) -> Iterator[Entry]:
        """Yield the entries, or parts of an entry, in this text. `rest` is the text after the last entry yielded."""
        position = 0
        self.rest = ""
        while position < len(text) and not self.is_over:
            if self.state not in ("key", "value"):
                self._between(text[position])
                position += self.state not in ("key", "value", "broken")  # else the character is the next one's
                continue
            part = self._value.take(text, position)
            position += len(part)
            self.rest = text[position:]
            if self.state == "value":
                self.state = "after value" if self._value.is_over else "value"
                yield Entry(self._key, part, self._value.is_over)
            else:
                self._token += part
                if self._value.is_over:
                    self._key, self.state = decoded(self._token) or "", "colon"
        self.rest = text[position:]

    def _between(self, char: str) -> None:
        """Read one character outside of keys and values."""
        if char in _SPACE:
            return
        is_value = self.state == "value start" and char not in ",:}]"
        self.state = "value" if is_value else _FOLLOWING.get((self.state, char), "broken")
        if self.state in ("key", "value"):
            self._token, self._value = "", ValueReader()


def decoded(text: str) -> str | None:
    """Return the string that this JSON text encodes; None if it is no string."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None
