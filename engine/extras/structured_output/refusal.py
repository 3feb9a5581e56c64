"""The refusal of a constraint in words of the request: what it is called there, and where in a schema the fault is."""

import json
import re
from collections.abc import Iterator
from typing import Any

from ...errors import InvalidRequestError
from .enforceable import escaped
from .params import StructuredOutputs

# Where llguidance says that a grammar is wrong, and a rule of ours that holds a schema.
_IN_LINE = re.compile(r"at (\d+)\(\d+\): (?:failed to compile JSON schema: )?")
_RULE = re.compile(r'(?:content|tool_\d+): .*?(?:\\"name\\": \\"([\w.-]+)\\".*?)?%json (?=[{tf])')


def refusal(outputs: StructuredOutputs, reason: str) -> InvalidRequestError:
    """The error for a reason that the compiler, or one of ours, gives."""
    what, schema = outputs.name, outputs.json if outputs.kind == "json" else None
    if outputs.kind == "grammar" and (found := _IN_LINE.match(reason)):
        line = dict(enumerate(str(outputs.grammar).split("\n"), 1)).get(int(found[1]), "")
        if rule := _RULE.match(line):
            reason = reason[found.end() :]
            what = f"{what}: the parameters of {rule[1]}" if rule[1] else what
            schema = line[rule.end() :]
    place = "" if schema is None else _place(str(schema), reason)
    if "coerce_one_of" in reason:
        reason += ': put "x-guidance": {"coerce_one_of": true} into the schema'
    return InvalidRequestError(f"{what} cannot be used: {place}{reason}", param=outputs.name)


def _place(schema: str, reason: str) -> str:
    """Where in the schema what the reason names stands first."""
    named = {*re.findall(r"[\"']([^\"']+)[\"']", reason), reason.rpartition(": ")[2]}
    try:
        parsed, _ = json.JSONDecoder().raw_decode(schema)
        for pointer, keyword, value in _items(parsed, ""):
            if keyword in named or (isinstance(value, str) and value.removeprefix("#") in named):
                return f"at {pointer}: "
    except (ValueError, RecursionError):
        pass
    return ""


def _items(value: Any, at: str) -> Iterator[tuple[str, str, Any]]:
    """Pointer, key and value of all that is within, from outside inwards."""
    if isinstance(value, (dict, list)):
        pairs = list(value.items() if isinstance(value, dict) else enumerate(value))
        for key, each in pairs:
            yield f"{at}/{escaped(str(key))}", str(key), each
        for key, each in pairs:
            yield from _items(each, f"{at}/{escaped(str(key))}")
