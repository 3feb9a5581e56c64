"""The grammar of a whole answer, in llguidance's Lark: reasoning, then calls of tools, or content of a given shape."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..chat import reasoning_parser
from ..chat.tool_parsers.registry import TOOL_FORMATS, ToolFormat
from ..errors import InvalidRequestError
from .enforceable import enforceable
from .params import JSON_SPACING, StructuredOutputs
from .refusal import refusal
from .to_llguidance import grammar_schema, spacing

_THOUGHT = [
    # The model's text up to the closing tag, which belongs to it.
    f"thought[suffix={json.dumps(reasoning_parser.CLOSING)}]: /(?s:.*)/",
    r"gap: /\s*/",
]


def answer_grammar(
    *,
    style: str | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    is_parallel: bool = True,
    thinks: bool = False,
    is_open: bool = False,
    content: StructuredOutputs | None = None,
) -> str:
    """Texts that are calls of these tools in this style, or `content`, whichever of them is given.

    At least one call, with `is_parallel` several, their arguments as the tools' schemas say. A model that `thinks` may
    do so before; if its prompt ends within the reasoning (`is_open`), it does. Raises InvalidRequestError.
    """
    rules = [] if style is None else _calls(TOOL_FORMATS[style], tools, is_parallel=is_parallel)
    rules += [] if content is None else _content(content)
    kinds = ["calls"] * (style is not None) + ["content"] * (content is not None)
    thought = ""
    if thinks:
        thought = "thought gap " if is_open else f"({_text(reasoning_parser.OPENING)} thought gap)? "
        rules += _THOUGHT
    return "\n".join([f"start: {thought}({' | '.join(kinds)})", *rules])


def _calls(style: ToolFormat, tools: Sequence[Mapping[str, Any]], *, is_parallel: bool) -> list[str]:
    more = f" ({_text(style.between)} call)*" if is_parallel else ""
    rules = [
        f"calls: call{more}",
        f"call: {_text(style.before)} body {_text(style.after)}",
        "body: " + " | ".join(f"tool_{number}" for number in range(len(tools))),
    ]
    for number, tool in enumerate(tools):
        function = tool["function"]
        parameters = function.get("parameters") or {"properties": {}, "additionalProperties": False}
        parameters = enforceable(parameters).schema
        schema = {"type": "object", **parameters, "x-guidance": dict(JSON_SPACING)}
        opening = f'{{"name": {json.dumps(function["name"])}, "{style.key}": '
        rules.append(f"tool_{number}: {_text(opening)} {_json(schema)} {_text('}')}")
    return rules


def _content(content: StructuredOutputs) -> list[str]:
    match content.kind:
        case "json" | "json_object":
            schema = grammar_schema(content)
            spaced = {"x-guidance": spacing(content), **schema} if isinstance(schema, dict) else schema
            try:
                return [f"content: {_json(spaced)}"]
            except RecursionError as exc:
                raise refusal(content, "the schema nests too deeply") from exc
        case "choice":
            return ["content: CHOICE", "CHOICE: " + " | ".join(map(json.dumps, content.choice or ()))]
        case "regex":
            from llguidance import regex_to_lark

            assert content.regex is not None
            return [f"content: /{regex_to_lark(content.regex)}/"]
    raise InvalidRequestError(
        f"{content.name} cannot go with tools, nor with a prompt that ends within reasoning: use json, regex or choice",
        param=content.name,
    )


def _text(text: str) -> str:
    """A Lark literal; "" for an empty text."""
    return json.dumps(text) if text else ""


def _json(schema: Any) -> str:
    # The two colons and the equals sign of GBNF would make the whole grammar look like GBNF.
    return "%json " + json.dumps(schema).replace("::=", "\\u003a\\u003a=")
