"""CallReader: one call of a tool, {"name": …, "arguments": {…}}, while its text still streams in.

Its parts find the entries of an object, and check nothing else of JSON.
"""

import json
from collections.abc import Container, Iterator
from typing import NamedTuple

from .answer_parts import AnswerPart
from .loose_values import json_scanner

ARGUMENTS = ("arguments", "parameters")  # Hermes' key and Llama's
_KEYS = frozenset({"name", *ARGUMENTS, "type", "id"})  # keys of a call that only its form identifies
_SPACE = " \t\r\n"
_FOLLOWING = {  # states of _ObjectReader after a character
    ("start", "{"): "first key",
    ("first key", '"'): "key",
    ("first key", "}"): "done",
    ("next key", '"'): "key",
    ("colon", ":"): "value start",
    ("after value", ","): "next key",
    ("after value", "}"): "done",
}


class _Entry(NamedTuple):
    """Next raw text of a key's value; `is_end`: the value is complete."""

    key: str
    text: str
    is_end: bool


class _ObjectReader:
    """Reader of text that begins with an object. `state` "done" or "broken" ends it; `rest` is the unread text."""

    def __init__(self) -> None:
        self.state = "start"
        self.rest = ""
        self._key = ""
        self._token = ""  # current key so far, with its quotes
        self._value = json_scanner()  # finder of the end of the current key or value

    @property
    def is_over(self) -> bool:
        """True if the reader takes no more text."""
        return self.state in ("done", "broken")

    def push(self, text: str) -> Iterator[_Entry]:
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
                yield _Entry(self._key, part, self._value.is_over)
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
            self._token, self._value = "", json_scanner()


def decoded(text: str) -> str | None:
    """Return the string that this JSON text encodes; None if it is no string."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None


class CallReader:
    """Reader of text that begins with the object. No part comes out until the name is known to be one of `names`.

    The arguments keep the model's formatting; arguments in a string of JSON are decoded.
    """

    def __init__(
        self, number: int, *, names: Container[str] | None = None, keys: tuple[str, str] = ("name", "arguments")
    ) -> None:
        """`keys`: of the name and, beside the usual ones, of the arguments."""
        self._number = number
        self._names = names
        self._name_key = keys[0]
        self._arguments_keys = (*ARGUMENTS, keys[1])
        self.object = _ObjectReader()
        self._name: str | None = None
        self._raw_name = ""
        self._key = ""  # name of this call's arguments, one of ARGUMENTS
        self._arguments = ""  # arguments' text that has not come out yet
        self._is_whole = False  # True for a string of JSON or null, which come out as a whole only
        self._has_ended = False
        self._is_no_call = False
        self.is_call = False  # True once a call has come out; a reader that is over without one read something else

    @property
    def is_over(self) -> bool:
        """True if the reader takes no more text."""
        return self._is_no_call or self.object.is_over

    def push(self, text: str) -> list[AnswerPart]:
        """Return the parts that are certain now."""
        parts: list[AnswerPart] = []
        for entry in self.object.push(text):
            parts += self._of(entry)
            if self._is_no_call:
                break
        if self.object.state == "done" and self._name is not None and not self._key:
            self._key, self._arguments = ARGUMENTS[0], "{}"
            parts += self._certain()
        return parts

    def _of(self, entry: _Entry) -> list[AnswerPart]:
        if self._names is not None and entry.key not in (*_KEYS, self._name_key, *self._arguments_keys):
            self._is_no_call = not self.is_call
            return []
        if entry.key == self._name_key and self._name is None:
            return self._of_name(entry)
        if entry.key in self._arguments_keys and entry.key == (self._key or entry.key) and not self._has_ended:
            return self._of_arguments(entry)
        return []

    def _of_name(self, entry: _Entry) -> list[AnswerPart]:
        self._raw_name += entry.text
        if not entry.is_end:
            return []
        name = decoded(self._raw_name)
        if not name or (self._names is not None and name not in self._names):
            self._is_no_call = True
            return []
        self._name = name
        return self._certain()

    def _of_arguments(self, entry: _Entry) -> list[AnswerPart]:
        if not self._key:
            self._key = entry.key
            self._is_whole = not entry.text.startswith("{")
            if entry.text[0] not in '{["n':
                self._is_no_call = not self.is_call
                return []
        self._arguments += entry.text
        if entry.is_end:
            self._has_ended = True
            if self._is_whole:
                if self._arguments != "null" and self._arguments[0] not in '["':
                    self._is_no_call = not self.is_call
                    return []
                self._is_whole = False
                # The JSON inside a string, {} for null, else the model's text.
                self._arguments = raw if (raw := self._arguments).startswith("[") else decoded(raw) or "{}"
        return self._certain()

    def _certain(self) -> list[AnswerPart]:
        """Return the call once its arguments have begun, and what is certain of them."""
        if self._name is None or self._is_whole or not self._arguments:
            return []
        call = [] if self.is_call else [AnswerPart("call", self._name, self._number)]
        self.is_call = True
        text, self._arguments = self._arguments, ""
        return [*call, AnswerPart("arguments", text, self._number)]
