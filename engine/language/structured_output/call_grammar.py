"""Rules of a grammar for calls of tools, and the building blocks of llguidance's Lark."""

import json
import re
from collections.abc import Container, Mapping, Sequence
from typing import Any

from ...errors import InvalidRequestError
from ..chat.call_syntax import ID, NUMBER, CallSyntax
from ..chat.loose_values import resolved, types_of
from .enforceable import enforceable
from .params import JSON_SPACING
from .schemas.document import TooManySchemasError
from .schemas.references import schemas_in

Schema = Mapping[str, Any]

_OPEN = frozenset({"additionalProperties", "unevaluatedProperties", "patternProperties"})
_MERGING = frozenset({"allOf", "if", "then", "else", "not", "dependentSchemas"})
_CHOOSING = frozenset({"anyOf", "oneOf", "$ref"})
_NAMED = ("properties", "$defs", "definitions")  # keys that hold schemas by name
_LISTED = ("anyOf", "oneOf", "prefixItems")
_ONE = ("items", "additionalProperties")


def arguments_schema(function: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of a function's arguments, an object. Objects without `additionalProperties` are closed."""
    schema = {"type": "object", **(function.get("parameters") or {"properties": {}})}
    return schema if any(map(_merges, schemas_in(schema))) else _closed(schema)


def _merges(schema: Schema) -> bool:
    """True if several schemas describe one object: closing one would forbid the properties of another."""
    return not _MERGING.isdisjoint(schema) or ("properties" in schema and not _CHOOSING.isdisjoint(schema))


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    closed = dict(schema)
    for key, value in schema.items():
        if key in _NAMED and isinstance(value, Mapping):
            closed[key] = {name: _closed(part) for name, part in value.items()}
        elif key in _LISTED and isinstance(value, list):
            closed[key] = list(map(_closed, value))
        elif key in _ONE:
            closed[key] = _closed(value)
    properties = closed.get("properties")
    if isinstance(properties, Mapping) and _OPEN.isdisjoint(closed):
        required = closed.get("required")
        if not isinstance(required, list) or all(name in properties for name in required):
            closed["additionalProperties"] = False
    return closed


_PLACES = {NUMBER: "/[0-9]+/", ID: "/[A-Za-z0-9]{9}/"}  # of a call's number and id


def literal(text: str, special_ids: Mapping[str, int]) -> str:
    """Return a text as Lark; its special tokens become token ids. "" for an empty text."""
    pieces = re.split(f"({'|'.join(map(re.escape, [*special_ids, *_PLACES]))})", text)
    terms = _PLACES | {piece: f"<[{token_id}]>" for piece, token_id in special_ids.items()}
    return " ".join(terms.get(piece, json.dumps(piece)) for piece in pieces if piece)


def text_up_to(end: str, name: str, *, of: str = "/(?s:.*)/", special_ids: Mapping[str, int]) -> str:
    """Return a rule of this name: any text up to the first `end`, included."""
    if special_ids and re.match("|".join(map(re.escape, special_ids)), end):  # no text holds a special token
        return f"{name}: {of} {literal(end, special_ids)}"
    return f"{name}[suffix={json.dumps(end)}]: {of}"


def json_value(schema: Any) -> str:
    """Return an expression for JSON that fits the schema."""
    # The two colons and the equals sign of GBNF would make the whole grammar look like GBNF.
    return "%json " + json.dumps(schema).replace("::=", "\\u003a\\u003a=")


def _spaced_json(schema: Schema) -> str:
    return json_value({**schema, "x-guidance": dict(JSON_SPACING)})


def call_rules(
    syntax: CallSyntax,
    tools: Sequence[Mapping[str, Any]],
    *,
    is_parallel: bool,
    special_ids: Mapping[str, int],
    unchecked: Container[str] = (),
    has_begun: bool = False,
) -> list[str]:
    """Return rules whose `calls` is at least one call of these tools, or several with `is_parallel`.

    Arguments fit the tools' schemas; `unchecked` functions take any object if it is JSON. `has_begun`: the
    output already has the syntax's trigger; unless the trigger opens a list, the next call has a trigger of its own.
    """
    begun = len(syntax.trigger) if has_begun else 0
    before, skip = syntax.before[begun:], 0 if syntax.before else begun
    is_list = is_parallel and syntax.between is not None and not skip
    more = f" ({literal(syntax.between or '', special_ids)} call)*" if is_list else ""
    after = syntax.after if syntax.before else ""  # else the turn ends here
    rules = [
        f"calls: {literal(before, special_ids)} call{more} {literal(after, special_ids)}",
        "call: " + " | ".join(f"tool_{number}" for number in range(len(tools))),
    ]
    has_keys = syntax.arguments in ("tags", "keywords")
    for number, tool in enumerate(tools):
        function = tool["function"]
        is_any = function["name"] in unchecked and not has_keys
        try:
            schema = {"type": "object"} if is_any else enforceable(arguments_schema(function)).schema
        except TooManySchemasError as exc:
            raise InvalidRequestError(f"tools: the parameters of {function['name']}: {exc}", param="tools") from exc
        opening, closing = syntax.around(function["name"])
        if has_keys:
            arguments, their_rules = _keyed_arguments(schema, f"tool_{number}", syntax, special_ids)
        else:
            arguments, their_rules = _spaced_json(schema), []
        opening, closing = literal(opening[skip:], special_ids), literal(closing, special_ids)
        rules += [f"tool_{number}: {opening} {arguments} {closing}", *their_rules]
    return rules


def _text_value(schema: Schema, name: str, end: str, special_ids: Mapping[str, int]) -> str:
    """Return the rule of a string as bare text up to its end."""
    schema = resolved(schema, schema)
    if "enum" in schema:
        choices = " | ".join(json.dumps(str(value)) for value in schema["enum"])
        return f"{name}: ({choices}) {literal(end, special_ids)}"
    length = schema["maxLength"] if isinstance(schema.get("maxLength"), int) else ""
    return text_up_to(end, name, of=f"/(?s:.{{0,{length}}})/", special_ids=special_ids)


def _keyed_arguments(
    schema: Mapping[str, Any], name: str, syntax: CallSyntax, special_ids: Mapping[str, int]
) -> tuple[str, list[str]]:
    """Return the rules for the properties in order, with the separator between them.

    Values are JSON, but strings are text in tags, and in quotes that are not JSON's.
    """
    definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    properties, required = schema.get("properties") or {}, schema.get("required") or ()
    is_raw = len(syntax.quote) != 1 or syntax.unescaped == "all"
    separator = literal(syntax.separator, special_ids)
    rules: list[str] = []
    later: list[str] = []
    for number, (key, value) in enumerate(properties.items()):
        rule = f"{name}_{number}"
        value_schema = {**(value if isinstance(value, Mapping) else {}), **definitions}
        is_text = is_raw and types_of(value_schema, value_schema) == {"string"}
        quote = syntax.quote if is_text else ""
        start = syntax.string_open if is_text and syntax.string_open else syntax.value_open + quote
        opening = literal(f"{syntax.key_open}{key}{start}", special_ids)
        if is_text:
            end = quote + syntax.value_close
            rules += [f"{rule}: {opening} {rule}_value", _text_value(value_schema, f"{rule}_value", end, special_ids)]
        else:
            closing = literal(syntax.value_close, special_ids)
            rules.append(f"{rule}: {opening} {_spaced_json(value_schema)} {closing}".rstrip())
        later.append(f"{separator} {rule}" if key in required else f"({separator} {rule})?")
    firsts = [" ".join([f"{name}_{number}", *later[number + 1 :]]) for number in range(len(properties))]
    for number, key in enumerate(properties):
        if key in required:
            return f"({' | '.join(firsts[: number + 1])})", rules
    return f"({' | '.join(firsts)})?" if firsts else "", rules
