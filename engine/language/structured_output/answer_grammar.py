"""Grammar of a whole answer, in llguidance's Lark: reasoning, then calls of tools, or content of a given shape."""

import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from ...errors import InvalidRequestError
from ..chat.call_formats import Style, call_syntax
from ..chat.reasoning_parser import ReasoningFormat, reasoning_format
from .call_grammar import call_rules, json_value, literal, text_up_to
from .params import StructuredOutputs
from .refusal import refusal
from .to_llguidance import grammar_schema, spacing


def answer_grammar(
    *,
    style: Style | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    is_parallel: bool = True,
    is_free: bool = False,
    unchecked: Container[str] = (),
    reasoning: Style | None = None,
    is_open: bool = False,
    content: StructuredOutputs | None = None,
    content_tags: Sequence[str] = (),
    special_ids: Mapping[str, int] | None = None,
) -> str:
    """Return a grammar whose texts are calls of these tools in this style, or `content`, or either of both.

    There is at least one call, several with `is_parallel`, with arguments that fit the tools' schemas; those of the
    `unchecked` functions may be any object. `is_free`: any text, in which the style's trigger begins such a call. The
    answer may begin with `reasoning` of this format; if the prompt ends within it (`is_open`), it must. `special_ids`:
    the special tokens among the texts of both formats. Raises InvalidRequestError.
    """
    special_ids = special_ids or {}
    syntax = None if style is None else call_syntax(style)
    form = None if reasoning is None else reasoning_format(reasoning)
    thought, rules = ("", []) if form is None else _reasoning(form, is_open=is_open, special_ids=special_ids)
    if syntax is not None:
        options: dict[str, Any] = {"is_parallel": is_parallel, "unchecked": unchecked, "has_begun": is_free}
        rules += call_rules(syntax, tools, special_ids=special_ids, **options)
    if syntax is not None and is_free:
        answer = "(before calls)* TEXT" if is_parallel else "(before calls | TEXT)"
        rules += _free_text(syntax.trigger, form, special_ids=special_ids)
    else:
        before = "" if form is None else literal(form.before_content, special_ids)
        before = f"({literal(content_tags[0], special_ids)})?" if content_tags and not before else before
        kinds = ["calls"] * (syntax is not None) + [f"{before} content".strip()] * (content is not None)
        answer = f"({' | '.join(kinds)})"
        rules += [] if content is None else _content(content)
    return "\n".join([f"start: {thought}{answer}", *rules])


def _free_text(trigger: str, form: ReasoningFormat | None, *, special_ids: Mapping[str, int]) -> list[str]:
    """Return the rules of text up to a call, and of text without one."""
    # Text that begins like reasoning is reasoning, and a trigger within reasoning begins no call.
    patterns = [re.escape(opening).replace("/", r"\/") for opening in (() if form is None else form.openings)]
    other = "".join(rf" & ~/\s*{pattern}(?s:.*)/" for pattern in patterns)
    return [text_up_to(trigger, "before", of="TEXT", special_ids=special_ids), f"TEXT: /(?s:.*)/{other}"]


def _reasoning(form: ReasoningFormat, *, is_open: bool, special_ids: Mapping[str, int]) -> tuple[str, list[str]]:
    """Return the start of an answer that may begin with reasoning, and its rules."""
    rules = [text_up_to(form.closings[0], "thought", special_ids=special_ids), r"gap: /\s*/"]
    if is_open:
        return "thought gap ", rules
    opening = " | ".join(literal(text, special_ids) for text in form.openings)
    return f"(({opening}) thought gap)? ", rules


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
