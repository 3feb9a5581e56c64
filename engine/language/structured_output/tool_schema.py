"""Schemas of tools' arguments, closed: undeclared properties are forbidden unless the schema allows them explicitly.

JSON Schema allows undeclared properties, but few callers mean that, and `f(**arguments)` would fail.
"""

from collections.abc import Mapping
from typing import Any

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
    return schema if _merges(schema) else _closed(schema)


def _closed(schema: Any) -> Any:
    if not isinstance(schema, Mapping):
        return schema
    closed = dict(schema)
    for key in _NAMED:
        if isinstance(closed.get(key), Mapping):
            closed[key] = {name: _closed(subschema) for name, subschema in closed[key].items()}
    for key in _LISTED:
        if isinstance(closed.get(key), list):
            closed[key] = [_closed(subschema) for subschema in closed[key]]
    for key in _ONE:
        if key in closed:
            closed[key] = _closed(closed[key])
    properties = closed.get("properties")
    if isinstance(properties, Mapping) and _OPEN.isdisjoint(closed):
        required = closed.get("required")
        if not isinstance(required, list) or all(name in properties for name in required):
            closed["additionalProperties"] = False
    return closed


def _merges(schema: Any) -> bool:
    """True if several schemas describe one object: closing one would forbid the properties of another."""
    if isinstance(schema, list):
        return any(map(_merges, schema))
    if not isinstance(schema, Mapping):
        return False
    if not _MERGING.isdisjoint(schema) or ("properties" in schema and not _CHOOSING.isdisjoint(schema)):
        return True
    return any(_merges(subschema) for key in _NAMED for subschema in _values(schema.get(key))) or any(
        _merges(schema.get(key)) for key in (*_LISTED, *_ONE)
    )


def _values(schemas: Any) -> list[Any]:
    return list(schemas.values()) if isinstance(schemas, Mapping) else []
