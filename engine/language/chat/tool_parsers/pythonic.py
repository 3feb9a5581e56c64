"""Llama 4's format of calls: a Python list of calls, [f(town="Oslo", days=3), g()], and nothing before it."""

import ast
import json
import re
import warnings
from collections.abc import Container
from typing import Any, Literal

from ..answer_parts import AnswerPart, BufferedReader, cut_at
from .tool_format import ToolFormat, names_of

_START, _END = "<|python_start|>", "<|python_end|>"
_NAME = re.compile(r"\s*[\w.-]{0,64}\s*")


class ArgumentReader:
    """Finder of one argument's end: the comma or bracket that is in no string and no inner bracket."""

    def __init__(self) -> None:
        self.is_over = False
        self._depth = 0
        self._quote = ""
        self._is_escaped = False

    def take(self, text: str) -> str:
        """Return the beginning of the text that belongs to the argument."""
        for position, char in enumerate(text):
            if self._ends_at(char):
                self.is_over = True
                return text[:position]
        return text

    def _ends_at(self, char: str) -> bool:
        if self._is_escaped:
            self._is_escaped = False
        elif self._quote:
            self._is_escaped = char == "\\"
            self._quote = "" if char == self._quote else self._quote
        elif char in "\"'":
            self._quote = char
        elif not self._depth and char in ",)]}":
            return True
        else:
            self._depth += (char in "([{") - (char in ")]}")
        return False


class PythonicCalls(BufferedReader):
    """Reader of a list at the answer's start. A list with a function that is not among `names` is content.

    Arguments come out one by one, so the first argument decides whether there is a call.
    """

    def __init__(self, names: Container[str]) -> None:
        super().__init__()
        self._names = names
        self._state: Literal["start", "name", "argument", "after", "text"] = "start"
        self._raw = ""  # text since the last call; empty once another call has come out
        self._name = ""
        self._argument = ArgumentReader()
        self._piece = ""  # argument's text so far
        self._num_arguments = 0
        self._num_calls = 0

    def finish(self) -> list[AnswerPart]:
        """Return the held-back parts."""
        return [*super().finish(), *self._part("content", self._raw), *self._last_space()]

    def _read(self, *, is_end: bool) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        steps = {
            "start": self._begin,
            "name": self._in_name,
            "argument": self._in_argument,
            "after": self._behind,
            "text": self._outside,
        }
        while self._text and steps[self._state](parts, is_end=is_end):
            pass
        return parts

    # These methods return True if there may be more to read, and append the certain parts to `parts`.

    def _begin(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        stripped = self._text.lstrip()
        if not stripped or (_START.startswith(stripped) and stripped != _START and not is_end):
            return False
        if stripped.startswith(_START):
            self._take(len(self._text) - len(stripped) + len(_START))
        elif stripped.startswith("["):
            self._take(len(self._text) - len(stripped) + 1)
            self._state = "name"
        else:
            self._give_up(parts)
        return True

    def _in_name(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        head, bracket, _ = self._text.partition("(")
        if not bracket and _NAME.fullmatch(head) and not is_end:
            return False
        if not bracket or head.strip() not in self._names:
            self._give_up(parts)
            return True
        self._take(len(head) + 1)
        self._name, self._num_arguments = head.strip(), 0
        self._state, self._argument, self._piece = "argument", ArgumentReader(), ""
        return True

    def _in_argument(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        text = self._argument.take(self._text)
        self._piece += text
        end = self._text[len(text) : len(text) + 1]
        self._take(len(text) + len(end))
        if not end:
            return False
        argument_json = self._argument_json(end)
        if argument_json is None:
            self._give_up(parts)
            return True
        if not self._num_arguments:
            parts.append(AnswerPart("call", self._name, self._num_calls))
        self._raw = ""
        self._drop_space()
        self._num_arguments += 1
        parts.append(AnswerPart("arguments", argument_json, self._num_calls))
        self._argument, self._piece = ArgumentReader(), ""
        if end == ")":
            self._state = "after"
            self._num_calls += 1
        return True

    def _argument_json(self, end: str) -> str | None:
        """Return the argument as JSON, with the JSON before and after it; None if the text is no argument."""
        opening, closing = ", " if self._num_arguments else "{", "}" if end == ")" else ""
        if end == ")" and not self._piece.strip():  # no argument, or a comma after the last
            return closing if self._num_arguments else "{}"
        key, _, literal = self._piece.partition("=")
        value = _as_json(literal.strip())
        if end not in ",)" or value is None or not key.strip().isidentifier():
            return None
        return f"{opening}{json.dumps(key.strip(), ensure_ascii=False)}: {value}{closing}"

    def _behind(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        stripped = self._text.lstrip()
        if not stripped:
            return False
        self._text = stripped[1:] if stripped[0] in ",]" else stripped
        self._state = "name" if stripped[0] == "," else "text"
        return True

    def _outside(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        text, found, self._text = (
            cut_at(self._text, _END, is_end=is_end) if self._num_calls else (self._text, False, "")
        )
        parts += self._part("content", text)
        return found

    def _take(self, num_chars: int) -> None:
        self._raw += self._text[:num_chars]
        self._text = self._text[num_chars:]

    def _give_up(self, parts: list[AnswerPart]) -> None:
        """End the calls here; the raw text becomes content."""
        if self._state == "argument" and self._num_arguments:  # the call's name is out
            parts.append(AnswerPart("arguments", "}", self._num_calls))
            self._num_calls += 1
        raw, self._raw, self._state = self._raw, "", "text"
        parts += self._part("content", raw)


def _as_json(literal: str) -> str | None:
    """Return a literal of Python or JSON as JSON; None if the text is neither."""
    try:
        return json.dumps(_value(literal), ensure_ascii=False, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _value(literal: str) -> Any:
    try:
        return json.loads(literal)
    except ValueError:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings about escapes such as "\d"
            return ast.literal_eval(literal)


FORMAT = ToolFormat(
    before="[",
    around=lambda name: (f"{name}(", ")"),
    arguments="python",
    between=", ",
    after="]",
    special_texts=(_START, _END),
    reader=lambda tools: PythonicCalls(names_of(tools)),
    matches=lambda template: "[func_name1(" in template,
)
