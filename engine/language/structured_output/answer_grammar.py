"""Grammar of a whole answer, in llguidance's Lark: reasoning, then calls of tools, or content of a given shape."""

import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from ...errors import InvalidRequestError
from ..chat.call_formats import Style, call_syntax
from ..chat.reasoning_parser import reasoning_format
from .call_grammar import call_rules, json_value, literal, text_up_to
from .params import StructuredOutputs
from .refusal import refusal
from .to_llguidance import grammar_schema, spacing


def answer_grammar(
    *,
    style: Style | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    is_parallel: bool = True,
    reasoning: Style | None = None,
    is_open: bool = False,
    content: StructuredOutputs | None = None,
    content_tags: Sequence[str] = (),
    special_ids: Mapping[str, int] | None = None,
) -> str:
    """Return a grammar whose texts are calls of these tools in this style, or `content`, or either of both.

    There is at least one call, several with `is_parallel`, with arguments that fit the tools' schemas. The answer may
    begin with `reasoning` of this format; if the prompt ends within it (`is_open`), it must. `special_ids`: the
    special tokens among the texts of both formats. Raises InvalidRequestError.
    """
    special_ids = special_ids or {}
    rules = []
    if style is not None:
        rules += call_rules(call_syntax(style), tools, is_parallel=is_parallel, special_ids=special_ids)
    rules += [] if content is None else _content(content)
    before = "" if reasoning is None else literal(reasoning_format(reasoning).before_content, special_ids)
    before = f"({literal(content_tags[0], special_ids)})?" if content_tags and not before else before
    kinds = ["calls"] * (style is not None) + [f"{before} content".strip()] * (content is not None)
    thought, their_rules = _reasoning(reasoning, is_open=is_open, special_ids=special_ids)
    return "\n".join([f"start: {thought}({' | '.join(kinds)})", *rules, *their_rules])


def free_answer_grammar(
    *,
    style: Style,
    tools: Sequence[Mapping[str, Any]],
    unchecked: Container[str] = (),
    is_parallel: bool = True,
    reasoning: Style | None = None,
    is_open: bool = False,
    special_ids: Mapping[str, int] | None = None,
) -> str:
    """Return a grammar of free text, where any tool call must match one tool's name and schema.

    Arguments of the `unchecked` functions may be any object. The style's trigger begins a call. Without `is_parallel`
    the answer ends with the first call. Other arguments are like answer_grammar's.
    """
    special_ids = special_ids or {}
    form = call_syntax(style)
    rules = call_rules(
        form, tools, is_parallel=is_parallel, special_ids=special_ids, unchecked=unchecked, has_begun=True
    )
    thought, their_rules = _reasoning(reasoning, is_open=is_open, special_ids=special_ids)
    answer = "(before calls)* TEXT" if is_parallel else "(before calls | TEXT)"
    # Text that begins like reasoning is reasoning, and a trigger within reasoning begins no call.
    openings = () if reasoning is None else reasoning_format(reasoning).openings
    patterns = [re.escape(opening).replace("/", r"\/") for opening in openings]
    other = "".join(rf" & ~/\s*{pattern}(?s:.*)/" for pattern in patterns)
    return "\n".join(
        [
            f"start: {thought}{answer}",
            text_up_to(form.trigger, "before", of="TEXT", special_ids=special_ids),
            f"TEXT: /(?s:.*)/{other}",
            *rules,
            *their_rules,
        ]
    )


def _reasoning(name: Style | None, *, is_open: bool, special_ids: Mapping[str, int]) -> tuple[str, list[str]]:
    """Return the start of an answer that may begin with reasoning, and its rules."""
    if name is None:
        return "", []
    form = reasoning_format(name)
    rules = [text_up_to(form.closings[0], "thought", special_ids=special_ids), r"gap: /\s*/"]
    if is_open:
        return "thought gap ", rules
    opening = " | ".join(literal(text, special_ids) for text in form.openings)
    return f"({opening if len(form.openings) == 1 else f'({opening})'} thought gap)? ", rules


def _content(content: StructuredOutputs) -> list[str]:
    match content.kind:
        case "json" | "json_object":
            schema = grammar_schema(content)
            spaced = {**schema, "x-guidance": {**spacing(content), **schema.get("x-guidance", {})}}
            try:
                return [f"content: {json_value(spaced)}"]
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
