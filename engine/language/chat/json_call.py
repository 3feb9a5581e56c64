"""CallReader: one call of a tool, {"name": …, "arguments": {…}}, while its text still streams in.

It finds the entries of an object, and checks nothing else of JSON.
"""

import json
import re
from collections.abc import Container

from .answer_parts import AnswerPart
from .loose_values import json_scanner

ARGUMENTS = ("arguments", "parameters")  # Hermes' key and Llama's
_KEYS = ("name", *ARGUMENTS, "type", "id")  # keys of a call that only its form identifies
_KEY = r'"(?:[^"\\]|\\.){0,256}'
_BEFORE_VALUE = re.compile(rf'\s*(?:[{{,]\s*({_KEY}")\s*:\s*(?=[^\s,:}}\]])|\{{?\s*\}})', re.DOTALL)  # or the end
_BEGUN = re.compile(rf'\s*(?:[{{,]\s*(?:{_KEY}(?:\\|"\s*(?::\s*)?)?)?)?', re.DOTALL)


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
        self._is_first = True
        self._key: str | None = None  # of the value that is being read
        self._value = json_scanner()  # finder of its end
        self._name = ""
        self._raw_name = ""
        self._arguments = ""  # text that has not come out yet
        self._is_object = False  # True: the arguments' text comes out as it comes in
        self._has_arguments = False  # True if they are whole
        self._num_begun = 0  # characters of the unread text that may begin a value
        self.is_over = False
        self.is_call = False  # True once a call has come out; a reader that is over without one read something else

    def read(self, text: str) -> tuple[list[AnswerPart], str]:
        """Return the parts that are certain now, and the unread text."""
        parts: list[AnswerPart] = []
        while text and not self.is_over:
            if self._key is None:
                before, self._num_begun = self._num_begun, len(text)
                if before and text[before:].isspace():  # else each of many spaces would read all before it again
                    break
                found = _BEFORE_VALUE.match(text)
                is_right = self._is_first or not text.lstrip().startswith("{")  # a comma stands before later entries
                if found is None or not is_right:
                    self.is_over = not (is_right and _BEGUN.fullmatch(text))
                    break
                self._is_first, self._num_begun = False, 0
                text = text[found.end() :]
                self._begin(found[1])
            else:
                piece = self._value.take(text)
                text = text[len(piece) :]
                self._take(piece, is_whole=self._value.is_over)
            parts += self._certain()
        return parts, text

    def _begin(self, key: str | None) -> None:
        """Begin the value of a key, given as JSON; without a key the object ends."""
        if key is None:
            self.is_over = True
            self._arguments += "" if self._has_arguments else "{}"
            self._has_arguments = True
            return
        self._key, self._value = decoded(key) or "", json_scanner()
        is_known = self._names is None or self._key in (*_KEYS, self._name_key, *self._arguments_keys)
        self.is_over = not is_known and not self.is_call

    def _take(self, text: str, *, is_whole: bool) -> None:
        if self._key == self._name_key and not self._name:
            self._raw_name += text
            name = decoded(self._raw_name) if is_whole else None
            if name and (self._names is None or name in self._names):
                self._name = name
            self.is_over = is_whole and not self._name
        elif self._key in self._arguments_keys and not self._has_arguments:
            self._arguments += text
            self._is_object = self._is_object or self._arguments.startswith("{")
            if is_whole and not self._is_object:
                self._arguments = _arguments_of(self._arguments)
                self.is_over = not self._arguments
            self._has_arguments = is_whole
        self._key = None if is_whole else self._key

    def _certain(self) -> list[AnswerPart]:
        """Return the call once its arguments have begun, and what is certain of them."""
        if not self._name or not self._arguments or not (self._is_object or self._has_arguments):
            return []
        call = [] if self.is_call else [AnswerPart("call", self._name, self._number)]
        self.is_call = True
        text, self._arguments = self._arguments, ""
        return [*call, AnswerPart("arguments", text, self._number)]


def decoded(text: str) -> str | None:
    """Return the string that this JSON text encodes; None if it is no string."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _arguments_of(text: str) -> str:
    """Return a list as it is, the JSON within a string, {} for null; "" if this is another value."""
    if text.startswith("["):
        return text
    return decoded(text) or "{}" if text == "null" or text.startswith('"') else ""
