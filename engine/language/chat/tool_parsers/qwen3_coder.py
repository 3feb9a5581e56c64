"""Qwen3-Coder's format of calls: <tool_call><function=NAME><parameter=KEY>value</parameter>…</function></tool_call>.

Values are bare text if the function's schema says string, else JSON.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from ..answer_parts import cut_at, cut_at_first
from ..loose_values import schema_of, typed_json, types_of
from .tagged_calls import TaggedCalls
from .tool_format import ToolFormat

PARAMETER, PARAMETER_END = "<parameter=", "</parameter>"
_OPENING, _CLOSING = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_HEAD = re.compile(r"\s*[\"']?([\w.-]+)[\"']?\s*")


class XmlArguments:
    """Arguments of a function with this schema, in XML."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.is_over = False
        self.rest = ""
        self._schema = schema
        self._text = ""  # unread text
        self._value: str | None = None  # current parameter's text that is not out yet
        self._types: frozenset[str] = frozenset()  # types that the current parameter may have
        self._is_first_text = True  # True until the current parameter has text
        self._num_parameters = 0

    def push(self, text: str) -> str:
        """Return the JSON that is certain now."""
        self._text += text
        json_text = ""
        while not self.is_over and (piece := self._next()) is not None:
            json_text += piece
        if self.is_over:
            self.rest, self._text = self._text, ""
        return json_text

    def _next(self) -> str | None:
        """Return the next piece of JSON; None if it takes more text."""
        if self._value is None:
            return self._between()
        return self._bare_text() if self._types == {"string"} else self._whole_value(self._value)

    def _between(self) -> str | None:
        """Read up to the beginning of a value, and drop text outside of tags."""
        _, tag, rest = cut_at_first(self._text, (PARAMETER, _FUNCTION_END, _CLOSING), is_end=False)
        if tag in (_FUNCTION_END, _CLOSING):
            self._text, self.is_over = rest, True
            return "}" if self._num_parameters else "{}"
        key, bracket, after = rest.partition(">")
        if tag is None or not bracket:
            self._text = (tag or "") + rest
            return None
        key = key.strip().strip("\"'")
        self._text, self._value, self._is_first_text = after, "", True
        self._types = types_of((self._schema.get("properties") or {}).get(key), self._schema)
        self._num_parameters += 1
        opening = "{" if self._num_parameters == 1 else ", "
        return f"{opening}{_json(key)}: " + ('"' if self._types == {"string"} else "")

    def _bare_text(self) -> str | None:
        """Read a string while it streams, without the line break on either side."""
        text, found, self._text = cut_at(self._text, PARAMETER_END, is_end=False)
        text = (self._value or "") + text
        if text and self._is_first_text:
            self._is_first_text = False
            text = text.removeprefix("\n")
        kept = text.removesuffix("\n")
        self._value = None if found else text[len(kept) :]
        return _json(kept)[1:-1] + '"' if found else _json(kept)[1:-1] or None

    def _whole_value(self, value: str) -> str | None:
        text, found, self._text = cut_at(self._text, PARAMETER_END, is_end=False)
        self._value = None if found else value + text
        if not found:
            return None
        text = (value + text).removeprefix("\n").removesuffix("\n")
        return typed_json(text, self._types)


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


FORMAT = ToolFormat(
    around=lambda name: (f"{_OPENING}\n{_FUNCTION}{name}>\n", f"{_FUNCTION_END}\n{_CLOSING}"),
    arguments="xml",
    between="\n",
    trigger=_OPENING,
    reader=lambda tools: TaggedCalls(
        opening=_FUNCTION,
        head=_HEAD,
        begins=">",
        silent=(_OPENING, _CLOSING),
        arguments=lambda name: XmlArguments(schema_of(tools, name)),
    ),
    matches=lambda template: _FUNCTION in template,
)
