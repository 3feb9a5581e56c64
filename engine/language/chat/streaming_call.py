"""CallReader: one call of a tool, {"name": …, "arguments": {…}}, while its text still streams in."""

from collections.abc import Container

from .answer_parts import AnswerPart
from .streaming_json import Entry, ObjectReader, decoded

ARGUMENTS = ("arguments", "parameters")  # Hermes' key and Llama's
_KEYS = frozenset({"name", *ARGUMENTS, "type", "id"})  # keys of a call that only its form identifies


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
        self._object = ObjectReader()
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
        return self._is_no_call or self._object.is_over

    @property
    def rest(self) -> str:
        """Text after the object."""
        return self._object.rest

    def push(self, text: str) -> list[AnswerPart]:
        """Return the parts that are certain now."""
        parts: list[AnswerPart] = []
        for entry in self._object.push(text):
            parts += self._of(entry)
            if self._is_no_call:
                break
        if self._object.state == "done" and self._name is not None and not self._key:
            self._key, self._arguments = ARGUMENTS[0], "{}"
            parts += self._certain()
        return parts

    def _of(self, entry: Entry) -> list[AnswerPart]:
        if self._names is not None and entry.key not in (*_KEYS, self._name_key, *self._arguments_keys):
            self._is_no_call = not self.is_call
            return []
        if entry.key == self._name_key and self._name is None:
            return self._of_name(entry)
        if entry.key in self._arguments_keys and entry.key == (self._key or entry.key) and not self._has_ended:
            return self._of_arguments(entry)
        return []

    def _of_name(self, entry: Entry) -> list[AnswerPart]:
        self._raw_name += entry.text
        if not entry.is_end:
            return []
        name = decoded(self._raw_name)
        if not name or (self._names is not None and name not in self._names):
            self._is_no_call = True
            return []
        self._name = name
        return self._certain()

    def _of_arguments(self, entry: Entry) -> list[AnswerPart]:
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
                self._arguments = _unwrapped(self._arguments)
        return self._certain()

    def _certain(self) -> list[AnswerPart]:
        """Return the call once its arguments have begun, and what is certain of them."""
        if self._name is None or self._is_whole or not self._arguments:
            return []
        call = [] if self.is_call else [AnswerPart("call", self._name, self._number)]
        self.is_call = True
        text, self._arguments = self._arguments, ""
        return [*call, AnswerPart("arguments", text, self._number)]


def _unwrapped(raw: str) -> str:
    """Return arguments that are no object as JSON: the JSON inside a string, {} for null, else the model's text."""
    return raw if raw.startswith("[") else decoded(raw) or "{}"
