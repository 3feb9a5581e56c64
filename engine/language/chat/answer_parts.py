"""Parts of a model's answer while it streams: reasoning, content, and calls of tools. Pure text work, no torch.

A reader takes text in chunks of any size, and returns only parts that no later text can change. However the text is
split, the joined parts are equal.
"""

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, Protocol

from ..text.stop_strings import overlap


class AnswerPart(NamedTuple):
    """Text of one kind. A call begins with its name ("call"); its arguments are JSON text. `number` counts calls."""

    kind: Literal["reasoning", "content", "call", "arguments"]
    text: str
    number: int = 0


class Reader(Protocol):
    """Incremental reader of one answer."""

    def push(self, text: str) -> list[AnswerPart]:
        """Return the parts that are certain now."""

    def finish(self) -> list[AnswerPart]:
        """Return the held-back parts, at the end of the text."""


def read_whole(reader: Reader, text: str) -> list[AnswerPart]:
    """Return all parts of an answer, with adjacent parts of one kind joined."""
    return joined([*reader.push(text), *reader.finish()])


def joined(parts: Iterable[AnswerPart]) -> list[AnswerPart]:
    """Join adjacent parts of one kind and call."""
    result: list[AnswerPart] = []
    for part in parts:
        last = result[-1] if result else None
        if last is not None and part.kind != "call" and (last.kind, last.number) == (part.kind, part.number):
            result[-1] = last._replace(text=last.text + part.text)
        else:
            result.append(part)
    return result


def cut_at_first(text: str, tags: Sequence[str], *, is_end: bool) -> tuple[str, str | None, str]:
    """Return the text before the first of the tags, that tag or None, and the text to be read next.

    The last is the text after the tag. Without a tag it is an ending of the text that may begin one, unless the answer
    is complete (`is_end`). No tag may lie within another, except at its end.
    """
    found = [(position, tag) for tag in tags if (position := text.find(tag)) >= 0]
    if found:
        position, tag = min(found)
        return text[:position], tag, text[position + len(tag) :]
    if is_end:
        return text, None, ""
    end = len(text) - max((overlap(text, tag) for tag in tags), default=0)
    return text[:end], None, text[end:]


class TagFilter:
    """Filter of the tags around content."""

    def __init__(self, tags: Iterable[str]) -> None:
        self._tags = [tag for tag in tags if tag]
        self._held = ""  # beginning of a tag, perhaps

    def without(self, parts: Iterable[AnswerPart], *, is_end: bool = False) -> list[AnswerPart]:
        """Return the parts without tags of content."""
        result: list[AnswerPart] = []
        for part in [*parts, *[AnswerPart("reasoning", "")] * is_end]:
            is_content = part.kind == "content"
            text, tag = self._held + part.text * is_content, self._tags[0] if self._tags else None
            while tag is not None:
                before, tag, text = cut_at_first(text, self._tags, is_end=not is_content)
                result += [AnswerPart("content", before)] * bool(before)
            self._held = text if self._tags else ""
            result += [part] * bool(part.text and not (is_content and self._tags))
        return result


class BufferedReader:
    """Reader that keeps text until its kind is decided, and whitespace until the text after it is known.

    Whitespace next to a call or a tag is dropped, unless content stands on both sides; whitespace within text is kept.
    """

    def __init__(self, *, drops_leading_space: bool = False) -> None:
        self._text = ""  # text whose kind is not decided yet
        self._space = ""  # whitespace held back at the end of the text so far
        self._drops_space = drops_leading_space  # True: drop whitespace at the start of the next text
        self._gap = ""  # whitespace beside a call, for content that follows content
        self._has_content = False

    def push(self, text: str) -> list[AnswerPart]:
        """Return the parts that are certain now."""
        self._text += text
        return self._read(is_end=False)

    def finish(self) -> list[AnswerPart]:
        """Return the held-back parts."""
        return self._read(is_end=True)

    def _read(self, *, is_end: bool) -> list[AnswerPart]:
        raise NotImplementedError

    def _part(self, kind: Literal["reasoning", "content"], text: str) -> list[AnswerPart]:
        """Return the held whitespace and this text as a part; the text's own last whitespace is held back instead."""
        text = self._space + text
        if self._drops_space:
            self._gap = self._gap or text[: len(text) - len(text.lstrip())]
            text = text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        self._drops_space = self._drops_space and not kept
        if not kept:
            return []
        if kind == "content":
            kept = (self._gap if self._has_content else "") + kept
            self._gap, self._has_content = "", True
        return [AnswerPart(kind, kept)]

    def _drop_space(self) -> None:
        """Drop the whitespace before and after a call or a tag that comes here."""
        self._gap = self._gap or self._space
        self._space, self._drops_space = "", True

    def _last_space(self) -> list[AnswerPart]:
        """Return the whitespace at the end of the answer, if it belongs to the content."""
        return [AnswerPart("content", self._space)] if self._space else []
