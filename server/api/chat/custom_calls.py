"""CustomCalls: calls of custom tools, which the model makes like functions with one string, with their bare input."""

from collections.abc import Collection

from pydantic_core import from_json

from ....engine.language.chat.answer_parser import AnswerParser
from ....engine.language.chat.answer_parts import AnswerPart, joined


class CustomCalls(AnswerParser):
    """Reader of answers. The arguments of a custom tool's call come out as one part, its input."""

    def __init__(self, reader: AnswerParser, names: Collection[str]) -> None:
        self._reader = reader
        self._names = names
        self._call: int | None = None  # number of the custom call that may still grow
        self._held: list[AnswerPart] = []  # parts from its arguments on

    @property
    def is_thinking(self) -> bool:
        """True while the answer is within its reasoning."""
        return self._reader.is_thinking

    def push(self, text: str) -> list[AnswerPart]:
        """Return the parts that are certain now."""
        return [ready for part in self._reader.push(text) for ready in self._ready(part)]

    def finish(self) -> list[AnswerPart]:
        """Return the held-back parts."""
        return [ready for part in self._reader.finish() for ready in self._ready(part)] + self._input()

    def _ready(self, part: AnswerPart) -> list[AnswerPart]:
        if part.kind == "arguments" and part.number == self._call:
            self._held.append(part)
            return []
        before = self._input()
        if part.kind == "call" and part.text in self._names:
            self._call = part.number
        return [*before, part]

    def _input(self) -> list[AnswerPart]:
        held, self._held, self._call = joined(self._held), [], None
        return [part._replace(text=custom_input(part.text)) for part in held]


def custom_input(arguments: str) -> str:
    """Return the string in the arguments, as far as they go; text of another form is the input itself."""
    try:
        value = from_json(arguments, allow_partial="trailing-strings")
    except ValueError:
        return arguments
    text = value.get("input", "") if isinstance(value, dict) else arguments
    return text if isinstance(text, str) else arguments
