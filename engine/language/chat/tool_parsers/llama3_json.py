"""Llama 3's format of calls: bare JSON, {"name": …, "parameters": {…}}, perhaps after a tag."""

from collections.abc import Container
from typing import Literal

from ..answer_parts import AnswerPart, BufferedReader, cut_at
from .streaming_call import CallReader
from .tool_format import ToolFormat, in_object, names_of

TAG = "<|python_tag|>"
_SEPARATORS = " \t\r\n,;"


class Llama3Calls(BufferedReader):
    """Reader of Llama 3's calls, which begin at the answer's start or after the tag, with ";" between them.

    An answer may be JSON without being a call, so the name must be one of `names`, the tools of the request.
    """

    def __init__(self, names: Container[str]) -> None:
        super().__init__()
        self._names = names
        self._state: Literal["before a call", "call", "text"] = "before a call"
        self._block = ""  # text since a call may have begun; empty once a call has come out
        self._call = CallReader(0, names=names)
        self._num_calls = 0

    def finish(self) -> list[AnswerPart]:
        """Return the held-back parts."""
        return [*super().finish(), *self._give_up(), *self._last_space()]

    def _read(self, *, is_end: bool) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        steps = {"before a call": self._begin, "call": self._inside, "text": self._outside}
        while steps[self._state](parts, is_end=is_end):
            pass
        return parts

    # These methods return True if there may be more to read, and append the certain parts to `parts`.

    def _begin(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        stripped = self._text.lstrip(_SEPARATORS if self._num_calls else None)
        self._block += self._text[: len(self._text) - len(stripped)]
        self._text = stripped
        if stripped.startswith("{"):
            self._state, self._call = "call", CallReader(self._num_calls, names=self._names)
        elif stripped.startswith(TAG):
            self._block += TAG
            self._text = stripped[len(TAG) :]
        elif not stripped or (TAG.startswith(stripped) and not is_end):
            return False
        else:
            parts += self._give_up()
        return True

    def _inside(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        new = self._call.push(self._text)
        self._block += self._text[: len(self._text) - len(self._call.rest)]
        self._text = self._call.rest
        if self._call.is_call:
            self._num_calls += bool(new) and new[0].kind == "call"
            self._block = ""
            self._drop_space()
            parts += new
        if not self._call.is_over:
            return False
        if self._call.is_call:
            self._state = "before a call"
        else:
            parts += self._give_up()
        return True

    def _outside(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        text, found, self._text = cut_at(self._text, TAG, is_end=is_end)
        parts += self._part("content", text)
        if found:
            self._block, self._state = TAG, "before a call"
        return found

    def _give_up(self) -> list[AnswerPart]:
        """Return the block as content, because no call begins here; read text up to the next tag."""
        block, self._block = self._block, ""
        self._state = "text"
        return self._part("content", block.lstrip(_SEPARATORS) if self._num_calls else block)


FORMAT = ToolFormat(
    around=in_object("parameters"),
    between="; ",
    reader=lambda tools: Llama3Calls(names_of(tools)),
    matches=lambda template: TAG in template or '{"name": function name, "parameters"' in template,
)
