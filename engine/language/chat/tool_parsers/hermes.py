"""Hermes' and Qwen's format of calls: <tool_call>{"name": …, "arguments": {…}}</tool_call>."""

from ..answer_parts import AnswerPart, BufferedReader, cut_at
from ..described_tools import CLOSING, OPENING
from .streaming_call import CallReader
from .tool_format import ToolFormat, in_object

_SEPARATORS = " \t\r\n,;[]"  # some models put several calls into one pair of tags


class HermesCalls(BufferedReader):
    """Reader of Hermes' calls. Text between the tags that is no call becomes content; junk after a call is dropped.

    Without a closing tag the calls, one or a list of calls, go on until other text comes.
    """

    def __init__(self, *, opening: str = OPENING, closing: str = CLOSING) -> None:
        super().__init__()
        self._opening = opening
        self._closing = closing
        self._is_inside = False  # True between the tags
        self._is_junk = False  # True: no call follows before the closing tag
        self._raw = ""  # text since the opening tag; empty once a call has come out
        self._call: CallReader | None = None
        self._num_calls = 0

    def finish(self) -> list[AnswerPart]:
        """Return the held-back parts."""
        return [*super().finish(), *self._part("content", self._raw), *self._last_space()]

    def _read(self, *, is_end: bool) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        while True:
            if not self._is_inside:
                text, found, self._text = cut_at(self._text, self._opening, is_end=is_end)
                parts += self._part("content", text)
                if not found:
                    return parts
                self._is_inside, self._is_junk, self._raw, self._call = True, False, self._opening, None
            if not self._is_junk:  # a tag within a string of the call is no end
                self._text = self._calls(self._text, parts)
            if not self._is_junk:
                return parts
            if self._raw or not self._closing:  # content; the rest is read as text
                parts += self._part("content", self._raw)
                self._is_inside, self._raw = False, ""
                continue
            _, found, self._text = cut_at(self._text, self._closing, is_end=is_end)
            if not found:
                return parts
            self._is_inside = False

    def _calls(self, text: str, parts: list[AnswerPart]) -> str:
        """Read calls within the tags. Return the unread text, from the first junk on."""
        while text and not self._is_junk:
            new: list[AnswerPart] = []
            if self._call is None:
                rest = text.lstrip(_SEPARATORS)
                self._is_junk = bool(rest) and not rest.startswith("{")
                self._call = CallReader(self._num_calls) if rest and not self._is_junk else None
            else:
                new, rest = self._call.push(text), self._call.rest
            if self._raw:
                self._raw += text[: len(text) - len(rest)]
            text = rest
            if new:
                self._raw = ""
                self._drop_space()
                self._num_calls += new[0].kind == "call"
                parts += new
            if self._call is not None and self._call.is_over:
                self._is_junk = not self._call.is_call
                self._call = None
        return text


FORMAT = ToolFormat(
    around=lambda name: (f"{OPENING}\n{in_object('arguments')(name)[0]}", f"}}\n{CLOSING}"),
    between="\n",
    trigger=OPENING,
    reader=lambda tools: HermesCalls(),
    matches=lambda template: OPENING in template and "<function=" not in template,
)
