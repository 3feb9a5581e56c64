"""What a model's answer consists of, as it comes: reasoning, content, and calls of tools. Pure text work, no torch.

A reader takes text in parts of any size, and gives out only what no later text can change: split anywhere, the joined
parts are the same.
"""

from collections.abc import Iterable
from typing import Literal, NamedTuple, Protocol


class AnswerPart(NamedTuple):
    """Text of one kind. A call begins with its name ("call"); its arguments are JSON text. `number` counts calls."""

    kind: Literal["reasoning", "content", "call", "arguments"]
    text: str
    number: int = 0


class Reader(Protocol):
    """Reads one answer."""

    def push(self, text: str) -> list[AnswerPart]:
        """What is certain now."""
        ...

    def finish(self) -> list[AnswerPart]:
        """What was held back, there being no more text."""
        ...


def read_whole(reader: Reader, text: str) -> list[AnswerPart]:
    """All parts of an answer, neighbours of one kind joined."""
    return joined([*reader.push(text), *reader.finish()])


def joined(parts: Iterable[AnswerPart]) -> list[AnswerPart]:
    """The parts with neighbours of one kind and call made one."""
    made: list[AnswerPart] = []
    for part in parts:
        last = made[-1] if made else None
        if last is not None and part.kind != "call" and (last.kind, last.number) == (part.kind, part.number):
            made[-1] = last._replace(text=last.text + part.text)
        else:
            made.append(part)
    return made


def overlap(text: str, tag: str) -> int:
    """Length of the longest end of the text that is a beginning of the tag, but not all of it."""
    for length in range(min(len(text), len(tag) - 1), 0, -1):
        if text.endswith(tag[:length]):
            return length
    return 0


def cut_at(text: str, tag: str, *, is_end: bool) -> tuple[str, bool, str]:
    """What stands before the tag, whether the tag is there, and what is to be read next: what stands after it, or what
    may be its beginning as long as the text has not come to its end.
    """
    before, found, after = text.partition(tag)
    if found or is_end:
        return before, bool(found), after
    place = len(text) - overlap(text, tag)
    return text[:place], False, text[place:]


class Gap:
    """Whitespace beside something that is no text, a call or a tag: dropped there, kept between text and text."""

    def __init__(self, *, at_start: bool = False) -> None:
        self._held = ""
        self._at_start = at_start  # leading whitespace goes

    def pass_on(self, text: str) -> str:
        """The text after what was held; its own last whitespace is held instead."""
        text = self._held + text
        if self._at_start:
            text = text.lstrip()
        kept = text.rstrip()
        self._held = text[len(kept) :]
        self._at_start = self._at_start and not kept
        return kept

    def drop(self) -> None:
        """Here stands something else: no whitespace before it, nor after it."""
        self._held = ""
        self._at_start = True

    def finish(self) -> str:
        """What is held, at the end of all text."""
        held, self._held = self._held, ""
        return held
