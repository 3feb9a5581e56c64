"""HarmonyParser: answers of gpt-oss, which are messages on channels: reasoning, calls or content.

https://cookbook.openai.com/articles/openai-harmony
"""

import re
from typing import Literal

from .answer_parts import AnswerPart, BufferedReader, cut_at_first

CHANNEL, MESSAGE, CONSTRAIN = "<|channel|>", "<|message|>", "<|constrain|>"
START, END, CALL, RETURN = "<|start|>", "<|end|>", "<|call|>", "<|return|>"
_ENDS = (END, CALL, RETURN, START)
_HEADS = (CHANNEL, START, "to=")
_MAX_HEAD_CHARS = 256
_RECIPIENT = re.compile(r"\bto=functions\.([\w.-]+)")
_ANALYSIS = re.compile(re.escape(CHANNEL) + r"\s*analysis\b")


class HarmonyParser(BufferedReader):
    """Reader of Harmony messages. Calls are content unless `reads_calls`, as is text that looks like no message."""

    def __init__(self, *, reads_calls: bool = True) -> None:
        super().__init__(drops_leading_space=True)
        self.held = ""  # a call ends reasoning here
        self._reads_calls = reads_calls
        self._state: Literal["head", "reasoning", "content", "call", "arguments"] = "head"
        self._name = ""  # name of the called function
        self._num_calls = 0

    @property
    def is_thinking(self) -> bool:
        """True while the answer is within its reasoning."""
        return self._state == "reasoning"

    def finish(self) -> list[AnswerPart]:
        """Return the held-back parts."""
        return [*super().finish(), *self._last_space()]

    def _read(self, *, is_end: bool) -> list[AnswerPart]:
        parts: list[AnswerPart] = []
        steps = {"head": self._in_head, "call": self._begin_call}
        while self._text and steps.get(self._state, self._in_body)(parts, is_end=is_end):
            pass
        return parts

    # These methods return True if there may be more to read, and append the certain parts to `parts`.

    def _in_head(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        head, found, rest = self._text.partition(MESSAGE)
        if not _may_be_head(head, is_whole=bool(found)) or (is_end and not found):
            parts += self._part("content", self._text[0])  # not a head
            self._text = self._text[1:]
            self._state = "content"
        elif found:
            self._text = rest
            recipient = _RECIPIENT.search(head)
            if recipient is not None and self._reads_calls:
                self._state, self._name = "call", recipient[1]
            else:
                self._state = "reasoning" if _ANALYSIS.search(head) else "content"
            if self._state != "content":
                self._drop_space()
        return self._state != "head"

    def _begin_call(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        """Begin a call if its arguments are an object or empty; otherwise the text is content."""
        self._text = self._text.lstrip()
        has_ended = self._text.startswith(_ENDS)
        if not self._text.startswith("{") and not has_ended:
            if not is_end and any(tag.startswith(self._text) for tag in _ENDS):
                return False
            self._state = "content"
            return True
        parts.append(AnswerPart("call", self._name, self._num_calls))
        if has_ended:
            parts.append(AnswerPart("arguments", "{}", self._num_calls))
        self._state = "arguments"
        self._num_calls += 1
        return True

    def _in_body(self, parts: list[AnswerPart], *, is_end: bool) -> bool:
        text, tag, self._text = cut_at_first(self._text, _ENDS, is_end=is_end)
        if self._state == "arguments":
            parts += [AnswerPart("arguments", text, self._num_calls - 1)] if text else []
        else:
            parts += self._part("content" if self._state == "content" else "reasoning", text)
        if tag is None:
            return False
        if tag == START:  # the next message's tag
            self._text = START + self._text
        if self._state != "content":
            self._drop_space()
        self._state = "head"
        return True


def _may_be_head(text: str, *, is_whole: bool) -> bool:
    stripped = text.lstrip()
    begins = stripped.startswith(_HEADS) or (not is_whole and any(tag.startswith(stripped) for tag in _HEADS))
    return begins and len(text) <= _MAX_HEAD_CHARS
