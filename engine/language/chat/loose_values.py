"""Values that models write for arguments: JSON, Python's literals, bare text. Where a value ends, and what is meant."""

import ast
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from ..text.stop_strings import overlap

QUOTES = ('"', "'")
_BRACKETS, _JSON_BRACKETS = ("([{", ")]}"), ("[{", "]}")
_MAX_REFERENCES = 4  # longest chain of references that is followed
_TYPES = {bool: "boolean", int: "integer", float: "number", type(None): "null", list: "array", dict: "object"}
_BARE_KEY = re.compile(r"(?<=[{,])\s*([^{}\[\],:\"]+?)\s*(?=:)")
_PYTHON = re.compile(r"\b(None|True|False)\b")
_JSON_WORDS = {"None": "null", "True": "true", "False": "false"}


def as_json(value: Any) -> str:
    """Dump a value as JSON; not-a-number and infinity are no JSON. Raises ValueError."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def loose_json(text: str, quote: str = "") -> str | None:
    """Return a literal as JSON, whatever language it is written in; None if it is no literal.

    `quote`: text around strings, if it is not a quotation mark; keys are bare then.
    """
    try:
        if len(quote) > 1:
            return as_json(json.loads("".join(_pieces(text.split(quote)))))
        try:
            return as_json(json.loads(text, parse_constant=_refuse))
        except ValueError:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # warnings about escapes such as "\\d"
                return as_json(ast.literal_eval(text.strip()))
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def _pieces(parts: Sequence[str]) -> list[str]:
    """Return texts between strings, and strings, by turns, as JSON."""
    words = [
        _PYTHON.sub(lambda found: _JSON_WORDS[found[0]], _BARE_KEY.sub(lambda found: json.dumps(found[1]), part))
        for part in parts
    ]
    return [json.dumps(parts[n]) if n % 2 else word for n, word in enumerate(words)]


def typed_json(text: str, types: frozenset[str]) -> str:
    """Return the intended value as JSON: a literal of one of these types, or the text itself."""
    literal = loose_json(text)
    name = "string" if literal is None else _TYPES.get(type(json.loads(literal)), "string")
    fits = name in types or (name == "integer" and "number" in types)
    return as_json(text) if literal is None or ("string" in types and (name == "string" or not fits)) else literal


class ValueScanner:
    """Finder of one value's end: the first of `stops` that is in no string and no inner bracket.

    `has_own_end`: the value is JSON, where a string, a list and an object end themselves.
    """

    def __init__(self, stops: str, quotes: tuple[str, ...], *, has_own_end: bool = False) -> None:
        self.is_over = False
        self._stops = stops
        self._quotes = quotes
        self._has_own_end = has_own_end
        self._open = ""  # quote of the string that is open
        self._is_escaped = False
        self._depth = 0
        self._brackets = _JSON_BRACKETS if has_own_end else _BRACKETS
        marks = "".join(quote[0] for quote in quotes)
        self._inside, self._outside = _first_of(marks + "\\"), _first_of(marks + stops + "".join(self._brackets))

    @property
    def is_in_string(self) -> bool:
        """True within a string."""
        return bool(self._open)

    def take(self, text: str, start: int = 0, *, is_end: bool = False) -> str:
        """Return the text from `start` on that belongs to the value and is certain."""
        position = start
        while position < len(text) and not self.is_over:
            if self._is_escaped:
                position, self._is_escaped = position + 1, False
                continue
            found = (self._inside if self._open else self._outside).search(text, position)
            position = len(text) if found is None else found.start()
            rest = text[position : position + 64]
            if not rest:
                break
            if len(self._open) == 1 and rest[0] == "\\":
                position, self._is_escaped = position + 1, True
                continue
            quote = next((quote for quote in self._quotes if rest.startswith(quote)), None)
            if quote is None and not is_end and any(overlap(rest, quote) == len(rest) for quote in self._quotes):
                break
            if quote is not None and self._open in ("", quote):
                if self._open and len(quote) > 1:  # such a string ends before the next value only
                    after = rest[len(quote) :].lstrip()
                    if not after and not is_end:
                        break
                    self._open = "" if not after or after[0] in ",:]}" + self._stops else quote
                else:
                    self._open = "" if self._open else quote
                position += len(quote)
                self.is_over = self._has_own_end and not self._open and not self._depth
            elif not self._open and not self._depth and rest[0] in self._stops:
                self.is_over = True
            else:
                position += 1
                opening, closing = self._brackets
                if not self._open and rest[0] in opening + closing:
                    self._depth += 1 if rest[0] in opening else -1
                    self.is_over = self._has_own_end and not self._depth
        return text[start:position]


@cache
def _first_of(chars: str) -> re.Pattern[str]:
    return re.compile(f"[{re.escape(chars)}]")


json_scanner = partial(ValueScanner, ",]} \t\r\n", ('"',), has_own_end=True)  # finder of a JSON value's end


def resolved(schema: Any, whole: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a part of the `whole` schema, or the part that it refers to."""
    for _ in range(_MAX_REFERENCES):
        reference = schema.get("$ref") if isinstance(schema, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        schema = whole
        for key in reference[2:].split("/"):
            schema = schema.get(key) if isinstance(schema, Mapping) else None
    return schema if isinstance(schema, Mapping) else {}


def types_of(schema: Any, whole: Mapping[str, Any]) -> frozenset[str]:
    """Return the JSON types that a part of the `whole` schema names; empty if it names none explicitly."""
    schema = resolved(schema, whole)
    type_names = schema.get("type")
    if isinstance(type_names, (str, list)):
        return frozenset([type_names] if isinstance(type_names, str) else map(str, type_names))
    if isinstance(schema.get("enum"), list):
        return frozenset(_TYPES.get(type(value), "string") for value in schema["enum"])
    choices = [types_of(part, whole) for key in ("anyOf", "oneOf") for part in schema.get(key) or ()]
    return frozenset().union(*choices) if all(choices) else frozenset()


def schema_of(tools: Sequence[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """Return the schema of a function's arguments; empty if there is none."""
    return next((tool["function"].get("parameters") or {} for tool in tools if tool["function"]["name"] == name), {})
