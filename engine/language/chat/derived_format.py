"""Formats of calls and reasoning as the server uses them: by name, or as JSON values that were asked of a template."""

import dataclasses
import re
from collections.abc import Mapping
from functools import partial
from typing import Any

from ...errors import ConfigError, InvalidRequestError
from .answer_parts import joined, read_whole
from .call_reader import CallsReader
from .call_syntax import CallSyntax
from .chat_form import READ_BACK, ChatForm
from .loose_values import loose_json
from .reasoning_parser import REASONING_FORMATS, ReasoningFormat
from .template import ChatTemplate
from .tool_parsers.registry import TOOL_FORMATS, detected_format
from .tool_parsers.tool_format import ToolFormat

Style = str | Mapping[str, Any]  # a name, or the fields of a CallSyntax or of a ReasoningFormat
_TAGS = re.compile(r"<[^<>\s]+>|\[/?[A-Z_]+\]|<[^<>\s]+(?=\s|\Z)")


def form_facts(template: ChatTemplate) -> dict[str, Any]:
    """Return what a template says of its answers, as JSON values.

    calls: the fields of a CallSyntax, unless a format of the registry reads them and there is no reasoning around
    them; reasoning: those of a ReasoningFormat; error: the reason if nothing can be derived.
    """
    try:
        form = ChatForm.of(template)
    except (ConfigError, InvalidRequestError) as exc:
        return {"error": str(exc)}
    calls, reasoning = form.calls, form.reasoning
    name = detected_format(template.source)
    is_known = calls is None or calls.arguments == "channels" or (reasoning is None and _reads(name, form))
    if calls is not None and not calls.trigger and name is not None:
        is_known = True  # a mark says more than a bare object
    return {
        "calls": None if calls is None or is_known else dataclasses.asdict(calls),
        "reasoning": None if reasoning is None else dataclasses.asdict(reasoning),
    }


def _reads(name: str | None, form: ChatForm) -> bool:
    """True if the format of this name reads what the template writes."""
    if name is None:
        return False
    for call in READ_BACK:
        text = form.render_calls([call])
        parts = joined(read_whole(TOOL_FORMATS[name].reader([_tool(*call)]), text))
        if [(part.kind, part.text) for part in parts if part.kind != "arguments"] != [("call", call[0])]:
            return False
        if loose_json("".join(part.text for part in parts if part.kind == "arguments")) != loose_json(str(call[1])):
            return False
    return True


def _tool(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    kinds = {str: "string", bool: "boolean", dict: "object"}
    properties = {key: {"type": kinds.get(type(value), "number")} for key, value in arguments.items()}
    return {"type": "function", "function": {"name": name, "parameters": {"properties": properties}}}


def tool_format(style: Style) -> ToolFormat:
    """Return a format of calls."""
    if isinstance(style, str):
        return TOOL_FORMATS[style]
    syntax = CallSyntax(**style)

    def around(name: str) -> tuple[str, str]:
        opening = f"{syntax.opening}{syntax.name_open}{name}{syntax.middle}"
        return opening, f"{syntax.arguments_close}{syntax.closing}"

    texts = " ".join(value for value in style.values() if isinstance(value, str))
    return ToolFormat(
        around=around,
        reader=partial(CallsReader, syntax),
        matches=lambda template: False,
        before=syntax.before,
        between=syntax.between,
        after=syntax.after if syntax.before else "",  # else the turn ends here
        arguments={"json": "json", "tags": "xml", "keywords": "python"}[syntax.arguments],  # type: ignore[arg-type]
        trigger=syntax.trigger,
        special_texts=tuple(dict.fromkeys(_TAGS.findall(texts))),
        syntax=syntax,
    )


def reasoning_format(name: Style) -> ReasoningFormat:
    """Return a format of reasoning."""
    if isinstance(name, str):
        return REASONING_FORMATS[name]
    openings, closings = tuple(name["openings"]), tuple(name["closings"])
    tags = tuple(_TAGS.findall(" ".join([*openings, *closings])))
    return ReasoningFormat(openings=openings, closings=closings, is_open=name["is_open"], special_texts=tags)
