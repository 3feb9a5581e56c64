"""Parts of answers in the form that tests write, and readers that get an answer in pieces."""

from collections.abc import Iterable

from splitfuse.engine.language.chat.answer_parts import AnswerPart, Reader, joined


def content(text: str) -> AnswerPart:
    return AnswerPart("content", text)


def reasoning(text: str) -> AnswerPart:
    return AnswerPart("reasoning", text)


def call(name: str, arguments: str, number: int = 0) -> list[AnswerPart]:
    parts = [AnswerPart("call", name, number), AnswerPart("arguments", arguments, number)]
    return parts if arguments else parts[:1]


def read_in_pieces(reader: Reader, pieces: Iterable[str]) -> list[AnswerPart]:
    """Return the parts that a new reader finds in an answer that comes in these pieces."""
    return joined([*(part for piece in pieces for part in reader.push(piece)), *reader.finish()])
