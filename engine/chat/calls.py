"""How a model writes calls of tools: which reader finds them, and the grammar that makes it write them.

Which style a model has is seen from its chat template (`detected_style`); --tool-call-parser overrules that.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .hermes import HermesCalls
from .llama3 import Llama3Calls
from .pieces import Piece, Reader
from .thinking import CLOSING as END_OF_THINKING
from .thinking import OPENING as BEGIN_OF_THINKING
from .thinking import ThinkingReader


@dataclass(frozen=True, slots=True)
class CallStyle:
    """What stands before, between and behind calls, and the key of their arguments."""

    before: str
    behind: str
    between: str
    key: str


STYLES = {
    "hermes": CallStyle("<tool_call>\n", "\n</tool_call>", "\n", "arguments"),
    "llama3_json": CallStyle("", "", "; ", "parameters"),
}
STYLE_OF_OTHERS = "hermes"  # for calls that a grammar enforces on a model that has no style of its own


def detected_style(template: str) -> str | None:
    """hermes if the template writes <tool_call> around JSON; llama3_json if it knows <|python_tag|> or tells the model
    to answer with "parameters"; else None.
    """
    if "<tool_call>" in template and "<function=" not in template:  # with the latter, Qwen's coder writes XML inside
        return "hermes"
    if "<|python_tag|>" in template or '{"name": function name, "parameters"' in template:
        return "llama3_json"
    return None


def call_reader(style: str, tools: Sequence[Mapping[str, Any]]) -> Reader:
    """What finds calls of this style in an answer."""
    return HermesCalls() if style == "hermes" else Llama3Calls({tool["function"]["name"] for tool in tools})


class AnswerReader:
    """A Reader of whole answers: reasoning first, then calls among the content. Either part may be missing."""

    def __init__(self, thinking: ThinkingReader | None, calls: Reader | None, *, max_calls: int | None = None) -> None:
        self._thinking = thinking
        self._calls = calls
        self._max_calls = max_calls  # what is called beyond that is dropped

    @property
    def is_thinking(self) -> bool:
        """Whether the answer is within its reasoning now."""
        return self._thinking is not None and self._thinking.is_thinking

    def push(self, text: str) -> list[Piece]:
        """What is certain now."""
        return self._after_thinking([Piece("content", text)] if self._thinking is None else self._thinking.push(text))

    def finish(self) -> list[Piece]:
        """What was held back."""
        pieces = self._after_thinking([] if self._thinking is None else self._thinking.finish())
        return pieces + self._allowed(self._calls.finish() if self._calls is not None else [])

    def _after_thinking(self, pieces: list[Piece]) -> list[Piece]:
        if self._calls is None:
            return pieces
        made: list[Piece] = []
        for piece in pieces:
            made += self._calls.push(piece.text) if piece.kind == "content" else [piece]
        return self._allowed(made)

    def _allowed(self, pieces: list[Piece]) -> list[Piece]:
        if self._max_calls is None:
            return pieces
        return [piece for piece in pieces if piece.number < self._max_calls]


def calls_grammar(
    style: str, tools: Sequence[Mapping[str, Any]], *, is_parallel: bool, thinks: bool = False, is_open: bool = False
) -> str:
    """A grammar in llguidance's Lark whose texts are calls of these tools with arguments as their schemas say.

    At least one call, with `is_parallel` several. If the model `thinks`, it may do so before; if its prompt `is_open`
    within the tag, it does.
    """
    form = STYLES[style]
    rules = [f"start: {_thought(is_open) if thinks else ''}call" + (f" ({_text(form.between)} call)*" * is_parallel)]
    rules.append(f"call: {_join(_text(form.before), 'body', _text(form.behind))}")
    rules.append("body: " + " | ".join(f"tool_{number}" for number in range(len(tools))))
    for number, tool in enumerate(tools):
        function = tool["function"]
        opening = f'{{"name": {json.dumps(function["name"])}, "{form.key}": '
        rules.append(f'tool_{number}: {_text(opening)} arguments_{number} "}}"')
        rules.append(f"arguments_{number}: %json {json.dumps(_schema(function))}")
    if thinks:
        rules.append(f"thought[suffix={_text(END_OF_THINKING)}]: /(?s:.*)/")
        rules.append(r"gap: /\s*/")
    return "\n".join(rules)


def _thought(is_open: bool) -> str:
    return "thought gap " if is_open else f"({_text(BEGIN_OF_THINKING)} thought gap)? "


def _schema(function: Mapping[str, Any]) -> Mapping[str, Any]:
    """Arguments are an object; a function without parameters takes none."""
    parameters = function.get("parameters")
    if not parameters:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    return {"type": "object", **parameters}


def _text(text: str) -> str:
    """A Lark literal, "" for nothing."""
    return json.dumps(text) if text else ""


def _join(*parts: str) -> str:
    return " ".join(part for part in parts if part)
