"""CallsReader: calls of any CallSyntax among the text of an answer, while the text streams in."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from .answer_parts import AnswerPart, BufferedReader, cut_at_first
from .call_arguments import Arguments, JsonArguments, Values
from .call_syntax import CallSyntax, Pattern, heads
from .loose_values import schema_of
from .tool_parsers.streaming_call import CallReader

Tools = Sequence[Mapping[str, Any]]


class CallsReader(BufferedReader):
    """Reader of calls. What is no call stays text. Calls without a tag stand at the beginning, and name known tools."""

    def __init__(self, syntax: CallSyntax, tools: Tools) -> None:
        super().__init__()
        self._syntax = syntax
        self._tools = tools
        self._first, self._later = heads(syntax)
        self._is_bare = not self._first
        self._state: Literal["text", "object", "arguments", "after", "only text"] = "text"
        self._call = CallReader(0)
        self._arguments: Arguments = JsonArguments(is_text=False)
        self._num_calls = 0
        self.raw = ""  # text of the call that is being read

    @property
    def is_inside(self) -> bool:
        """True within a call."""
        return self._state in ("object", "arguments")

    def finish(self) -> list[AnswerPart]:
        """Return the held-back parts."""
        parts = super().finish()
        if self._state == "object" and not self._call.is_call:
            parts += self._part("content", self.raw)
        return [*parts, *self._last_space()]

    def _read(self, *, is_end: bool) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        steps = {
            "text": self._outside,
            "object": self._in_object,
            "arguments": self._in_arguments,
            "after": self._behind,
            "only text": self._all_text,
        }
        while (self._text or self._state == "after") and steps[self._state](parts, is_end=is_end):
            pass
        return parts

    # These methods return True if there may be more to read, and append the certain parts to `parts`.

    def _outside(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        if self._is_bare:
            if not self._text.strip() and not is_end:
                return False
            begun = self._begin(self._later, parts, is_end=is_end)
            if begun is False:
                self._state = "only text"
            return begun is not None
        tags = list(dict.fromkeys(pattern.first for pattern in self._first))
        text, tag, rest = cut_at_first(self._text, tags, is_end=is_end)
        parts += self._part("content", text)
        self._text = (tag or "") + rest
        if tag is None:
            return False
        begun = self._begin(self._first, parts, is_end=is_end)
        if begun is False:
            parts += self._part("content", self._text[0])
            self._text = self._text[1:]
        return begun is not None

    def _all_text(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        parts += self._part("content", self._text)
        self._text = ""
        return False

    def _begin(self, patterns: Sequence[Pattern], parts: list[AnswerPart], *, is_end: bool) -> bool | None:
        """Begin a call if one stands here; None if more text decides."""
        has_more = False
        for pattern in patterns:
            end, name = pattern.match(self._text, is_end=is_end)
            if end is None:
                has_more = True
            elif end >= 0:
                begun = self._begin_at(end, name, parts, is_end=is_end)
                if begun:
                    return True
                has_more = has_more or begun is None
        return None if has_more else False

    def _begin_at(self, end: int, name: str, parts: list[AnswerPart], *, is_end: bool) -> bool | None:
        rest = self._text[end:].lstrip()
        if self._syntax.name_key:
            if not rest.startswith("{"):
                return None if not rest and not is_end else False
            names = frozenset(tool["function"]["name"] for tool in self._tools) if self._is_bare else None
            keys = (self._syntax.name_key, self._syntax.arguments_key)
            self._call = CallReader(self._num_calls, names=names or None, keys=keys)
            self._state = "object"
        else:
            arguments = self._new_arguments(name)
            begins = arguments.begins(rest, is_end=is_end)
            if not begins:
                return begins
            self._drop_space()
            parts.append(AnswerPart("call", name, self._num_calls))
            self._arguments, self._state = arguments, "arguments"
        self.raw = self._text[: len(self._text) - len(rest)]
        self._text = rest
        return True

    def _new_arguments(self, name: str) -> Arguments:
        if self._syntax.arguments == "json":
            return JsonArguments(is_text=self._syntax.is_text)
        return Values(self._syntax, schema_of(self._tools, name))

    def _in_object(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        new = self._call.push(self._text)
        self.raw += self._text[: len(self._text) - len(self._call.rest)]
        self._text = self._call.rest
        if new:
            self._drop_space()
            parts += new
        if not self._call.is_over:
            return False
        if self._call.is_call:
            self._num_calls += 1
            self._state = "after"
        else:
            parts += self._part("content", self.raw)
            self._state = "only text" if self._is_bare else "text"
        return True

    def _in_arguments(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        text, rest = self._arguments.read(self._text, is_end=is_end)
        self.raw += self._text[: len(self._text) - len(rest)]
        self._text = rest
        if text:
            parts.append(AnswerPart("arguments", text, self._num_calls))
        if not self._arguments.is_over:
            return False
        self._num_calls += 1
        self._state = "after"
        return True

    def _behind(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        """Read the end of a call, what stands between it and the next one, or the end of all."""
        closing = self._syntax.closing.strip()
        if self._syntax.arguments == "keywords":
            closing = closing[1:]
        text = self._without(self._text, Pattern(closing).words, is_end=is_end)
        if text is None:
            return False
        whole, self._text = self._text, text
        begun = self._begin(self._later, parts, is_end=is_end) if text.strip() or is_end else None
        if begun is None:
            self._text = whole
            return False
        if begun:
            return True
        text = self._without(text, Pattern(f"{self._syntax.after} {self._syntax.trailer}").words, is_end=is_end)
        if text is None:
            self._text = whole
            return False
        self._text = text
        self._state = "only text" if self._is_bare else "text"
        self.raw = ""
        self._drop_space()
        return True

    def _without(self, text: str, words: Sequence[str], *, is_end: bool) -> str | None:
        """Return the text after these words, any of which may be missing; None if more text decides."""
        for word in words:
            stripped = text.lstrip()
            if stripped.startswith(word):
                text = stripped[len(word) :]
            elif word.startswith(stripped) and not is_end:
                return None
        return text
