"""HermesCalls: calls as Hermes and Qwen write them: <tool_call>{"name": …, "arguments": {…}}</tool_call>."""

from ..answer_parts import AnswerPart, BufferedReader, cut_at
from .streaming_call import CallReader

OPENING, CLOSING = "<tool_call>", "</tool_call>"
_SEPARATORS = " \t\r\n,;[]"  # some models put several calls into one pair of tags


class HermesCalls(BufferedReader):
    """A Reader. Text between the tags that is no call stays in the content as it was written."""

    def __init__(self) -> None:
        super().__init__()
        self._block: _Block | None = None  # between the tags
        self._num_calls = 0

    def finish(self) -> list[AnswerPart]:
        """What was held back."""
        parts = super().finish()
        if self._block is not None:
            parts += self._part("content", self._block.raw)
        held = self._gap.finish()
        return [*parts, AnswerPart("content", held)] if held else parts

    def _read(self, *, is_end: bool) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        has_more = True
        while has_more:
            tag = OPENING if self._block is None else CLOSING
            text, found, self._text = cut_at(self._text, tag, is_end=is_end)
            has_more = found
            if self._block is None:
                parts += self._part("content", text)
                self._block = _Block(self._num_calls) if found else None
            elif (rest := self._inside(self._block, text, parts)) is not None:  # no call: read it as text
                self._text = rest + tag * found + self._text
                has_more = True
            elif found:
                parts += self._part("content", self._block.raw + CLOSING if self._block.raw else "")
                self._block = None
        return parts

    def _inside(self, block: "_Block", text: str, parts: list[AnswerPart]) -> str | None:
        """Read within the tags. If that turns out to be no call, its end as far as it has not been read."""
        new = block.push(text)
        if new:
            self._num_calls = block.num_calls
            self._gap.drop()
            parts += new
        if not (block.is_junk and block.raw):
            return None
        parts += self._part("content", block.raw)
        self._block = None
        return block.rest


class _Block:
    """The text between a pair of tags: calls, and after them perhaps junk. `raw` is its text until a call comes out."""

    def __init__(self, num_calls: int) -> None:
        self.num_calls = num_calls
        self.raw = OPENING
        self.is_junk = False
        self.rest = ""  # of the junk, what was not read
        self._call: CallReader | None = None

    def push(self, text: str) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        while text and not self.is_junk:
            if self._call is None:
                stripped = text.lstrip(_SEPARATORS)
                self._count(text, stripped)
                text = stripped
                self.is_junk = bool(text) and not text.startswith("{")
                if text and not self.is_junk:
                    self._call = CallReader(self.num_calls)
                continue
            new = self._call.push(text)
            self._count(text, self._call.rest)
            text = self._call.rest
            if self._call.is_call:
                self.raw = ""
                self.num_calls += bool(new) and new[0].kind == "call"
                parts += new
            if self._call.is_over:
                self.is_junk = not self._call.is_call
                self._call = None
        self.rest = text
        return parts

    def _count(self, text: str, rest: str) -> None:
        if self.raw:
            self.raw += text[: len(text) - len(rest)]
