"""Refusal of a constraint in the request's words: its name for the constraint, and the fault's place in a schema."""

import json
import re
from collections.abc import Iterator
from typing import Any

from ...errors import InvalidRequestError
from .params import StructuredOutputs
from .schemas.document import escaped

# Place of an error in llguidance's message, and a rule of ours that holds a schema.
_IN_LINE = re.compile(r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?")
_RULE = re.compile(r'(?:content|tool_\d+): .*?(?:\\"name\\": \\"([\w.-]+)\\".*?)?%json (?=[{tf])')


def refusal(outputs: StructuredOutputs, reason: str) -> InvalidRequestError:
    """Return the error for a reason from llguidance's compiler or from our checks."""
    name, schema = outputs.name, outputs.json if outputs.kind == "json" else None
    if outputs.kind == "grammar" and (match := _IN_LINE.match(reason)):
        line = dict(enumerate(str(outputs.grammar).split("\n"), 1)).get(int(match[1]), "")
        if rule := _RULE.match(line):
            reason = reason[match.end() :]
            name = f"{name}: the parameters of {rule[1]}" if rule[1] else name
            schema = line[rule.end() :]
    place = "" if schema is None else _place(str(schema), reason)
    if "coerce_one_of" in reason:
        reason += ': put "x-guidance": {"coerce_one_of": true} into the schema'
    return InvalidRequestError(f"{name} cannot be used: {place}{reason}", param=outputs.name)


def _place(schema: str, reason: str) -> str:
    """Return the place in the schema of the first keyword or value that the reason names; "" if there is none."""
    words = {*re.findall(r"[\"']([^\"']+)[\"']", reason), reason.rpartition(": ")[2]}
    try:
        parsed, _ = json.JSONDecoder().raw_decode(schema)
        for pointer, keyword, value in _items(parsed, ""):
            if keyword in words or (isinstance(value, str) and value.removeprefix("#") in words):
                return f"at {pointer}: "
    except (ValueError, RecursionError):
        pass
    return ""


def _items(value: Any, at: str) -> Iterator[tuple[str, str, Any]]:
    """Yield pointer, key and value of all items, outer ones first."""
    if isinstance(value, (dict, list)):
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, item in pairs:
            yield f"{at}/{escaped(str(key))}", str(key), item
        for key, item in pairs:
            yield from _items(item, f"{at}/{escaped(str(key))}")
