"""TaggedCalls: calls of a tag, a head with the name, and arguments that mark their own end."""

import re
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

from ..answer_parts import AnswerPart, BufferedReader, cut_at_first
from .streaming_json import ValueReader

_MAX_HEAD_CHARS = 256


class Arguments(Protocol):
    """Reader of one call's arguments, which become JSON text."""

    @property
    def is_over(self) -> bool:
        """True if the reader takes no more text."""

    @property
    def rest(self) -> str:
        """Text that was not read."""

    def push(self, text: str) -> str:
        """Return the JSON that is certain now."""


class JsonArguments:
    """Reader of arguments that are JSON."""

    def __init__(self) -> None:
        self.rest = ""
        self._value = ValueReader()

    @property
    def is_over(self) -> bool:
        """True if the reader takes no more text."""
        return self._value.is_over

    def push(self, text: str) -> str:
        """Return the JSON that is certain now."""
        value_text = self._value.take(text)
        self.rest = text[len(value_text) :]
        return value_text


class TaggedCalls(BufferedReader):
    """Reader of calls. `head` matches the text between the opening tag and `begins`; its group is the name.

    An opening tag without a head is content. `silent` tags are dropped everywhere.
    """

    def __init__(
        self,
        *,
        opening: str,
        head: re.Pattern[str],
        begins: str = "{",
        silent: Sequence[str] = (),
        arguments: Callable[[str], Arguments] = lambda name: JsonArguments(),
    ) -> None:
        super().__init__()
        self._opening = opening
        self._head = head
        self._begins = begins
        self._silent = silent
        self._new_arguments = arguments  # function name -> reader of its arguments
        self._state: Literal["text", "head", "arguments"] = "text"
        self._arguments: Arguments = JsonArguments()
        self._num_calls = 0

    def finish(self) -> list[AnswerPart]:
        """Return the held-back parts."""
        return [*super().finish(), *self._last_space()]

    def _read(self, *, is_end: bool) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        steps = {"text": self._outside, "head": self._in_head, "arguments": self._in_arguments}
        while self._text and steps[self._state](parts, is_end=is_end):
            pass
        if is_end and self._state == "head":  # the text ended with the tag
            parts += self._part("content", self._opening)
        return parts

    # These methods return True if there may be more to read, and append the certain parts to `parts`.

    def _outside(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        text, tag, self._text = cut_at_first(self._text, (self._opening, *self._silent), is_end=is_end)
        parts += self._part("content", text)
        if tag == self._opening:
            self._state = "head"
        elif tag is not None:
            self._drop_space()
        return tag is not None

    def _in_head(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        head, mark, rest = self._text.partition(self._begins)
        if not mark and len(head) <= _MAX_HEAD_CHARS and not is_end:
            return False
        found = self._head.fullmatch(head) if mark and len(head) <= _MAX_HEAD_CHARS else None
        if found is None:
            parts += self._part("content", self._opening)
            self._state = "text"
            return True
        self._drop_space()
        parts.append(AnswerPart("call", found[1], self._num_calls))
        self._arguments = self._new_arguments(found[1])
        self._text = mark + rest if mark == "{" else rest  # a brace belongs to the arguments
        self._state = "arguments"
        return True

    def _in_arguments(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        text = self._arguments.push(self._text)
        self._text = self._arguments.rest
        if text:
            parts.append(AnswerPart("arguments", text, self._num_calls))
        if not self._arguments.is_over:
            return False
        self._num_calls += 1
        self._state = "text"
        return True
