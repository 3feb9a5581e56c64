"""What a model's answer consists of, as it comes: reasoning, content, and calls of tools. Pure text work, no torch.

A reader takes text in chunks of any size, and returns only what no later text can change: however the text is split,
the joined parts are the same.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

from ...text.stop_strings import overlap


class AnswerPart(NamedTuple):
    """Text of one kind. A call begins with its name ("call"); its arguments are JSON text. `number` counts calls."""

    kind: Literal["reasoning", "content", "call", "arguments"]
    text: str
    number: int = 0


class Reader(Protocol):
    """Reads one answer."""

    def push(self, text: str) -> list[AnswerPart]:
        """What is certain now."""

    def finish(self) -> list[AnswerPart]:
        """What was held back, there being no more text."""


def read_whole(reader: Reader, text: str) -> list[AnswerPart]:
    """All parts of an answer, adjacent ones of one kind joined."""
    return joined([*reader.push(text), *reader.finish()])


def joined(parts: Iterable[AnswerPart]) -> list[AnswerPart]:
    """The parts with adjacent ones of one kind and call made one."""
    made: list[AnswerPart] = []
    for part in parts:
        last = made[-1] if made else None
        if last is not None and part.kind != "call" and (last.kind, last.number) == (part.kind, part.number):
            made[-1] = last._replace(text=last.text + part.text)
        else:
            made.append(part)
    return made


def cut_at(text: str, tag: str, *, is_end: bool) -> tuple[str, bool, str]:
    """The text before the tag, whether the tag is there, and the text to be read next: what follows the tag, or an end
    that may be its beginning, unless the text has come to its end (`is_end`).
    """
    before, found, after = text.partition(tag)
    if found or is_end:
        return before, bool(found), after
    end = len(text) - overlap(text, tag)
    return text[:end], False, text[end:]


def cut_at_first(text: str, tags: Sequence[str], *, is_end: bool) -> tuple[str, str | None, str]:
    """The same with the tag that comes first, or None. No tag may be a part of another, but for its end."""
    found = [(position, tag) for tag in tags if (position := text.find(tag)) >= 0]
    if found:
        position, tag = min(found)
        return text[:position], tag, text[position + len(tag) :]
    if is_end:
        return text, None, ""
    end = len(text) - max(overlap(text, tag) for tag in tags)
    return text[:end], None, text[end:]


class BufferedReader:
    """A Reader that keeps text until it is decided, and whitespace until it is known what follows.

    Whitespace next to a call or a tag is dropped, whitespace within text is kept.
    """

    def __init__(self, *, drops_leading_space: bool = False) -> None:
        self._text = ""  # not decided yet
        self._space = ""  # at the end of the text so far
        self._drops_space = drops_leading_space  # at the start of what follows

    def push(self, text: str) -> list[AnswerPart]:
        """What is certain now."""
        self._text += text
        return self._read(is_end=False)

    def finish(self) -> list[AnswerPart]:
        """What was held back."""
        return self._read(is_end=True)

    def _read(self, *, is_end: bool) -> list[AnswerPart]:
        raise NotImplementedError

    def _part(self, kind: Literal["reasoning", "content"], text: str) -> list[AnswerPart]:
        """The whitespace held back and this text, whose own last whitespace is held back instead."""
        text = self._space + text
        if self._drops_space:
            text = text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        self._drops_space = self._drops_space and not kept
        return [AnswerPart(kind, kept)] if kept else []

    def _drop_space(self) -> None:
        """A call or a tag comes here: no whitespace before it, nor after it."""
        self._space, self._drops_space = "", True

    def _last_space(self) -> list[AnswerPart]:
        """Whitespace at the end of the answer, if it belongs to the content."""
        return [AnswerPart("content", self._space)] if self._space else []
