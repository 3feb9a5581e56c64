"""Dialects of JSON Schema: drafts 3 to 7, 2019-09 and 2020-12, and the form of 2020-12 for the keywords of each.

This module knows one schema object at a time. References are static_schema.py's.
"""

import re
from typing import Any

Schema = dict[str, Any]

DRAFT_3, DRAFT_4, DRAFT_6, DRAFT_7, DRAFT_2019, DRAFT_2020 = 3, 4, 6, 7, 2019, 2020
_NAMED = re.compile(r"^https?://json-schema\.org/draft(?:-0(\d)|/(20\d\d)-\d\d)/")
# Keywords that constrain, and llguidance's options. All others are annotations.
_CONSTRAINTS = frozenset(
    {
        *("type", "enum", "const", "x-guidance"),
        *("multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
        *("maxLength", "minLength", "pattern", "format"),
        *("items", "prefixItems", "additionalItems", "contains", "minContains", "maxContains", "unevaluatedItems"),
        *("maxItems", "minItems", "uniqueItems"),
        *("properties", "patternProperties", "additionalProperties", "propertyNames", "unevaluatedProperties"),
        *("required", "dependencies", "dependentRequired", "dependentSchemas", "maxProperties", "minProperties"),
        *("allOf", "anyOf", "oneOf", "not", "if", "then", "else"),
    }
)
_SIZES = (
    *("minLength", "maxLength", "minItems", "maxItems"),
    *("minProperties", "maxProperties", "minContains", "maxContains"),
)


def by_keyword(owner: type, keywords: str) -> dict[str, Any]:
    """Map each of these keywords to the owner's method of that name: uniqueItems to _unique_items."""
    return {keyword: getattr(owner, re.sub("(?=[A-Z])", "_", f"_{keyword}").lower()) for keyword in keywords.split()}


def dialect_of(schema: Any, inherited: int = DRAFT_2020) -> int:
    """Return the dialect that the schema's `$schema` names; without one, or with an unknown one, the inherited."""
    named = schema.get("$schema") if isinstance(schema, dict) else None
    match = _NAMED.match(named) if isinstance(named, str) else None
    if match is None:
        return inherited
    return {3: 3, 4: 4, 5: 4, 6: 6, 7: 7, 2019: 2019}.get(int(match[1] or match[2]), DRAFT_2020)


def identifier(schema: Any, dialect: int) -> str | None:
    """Return the `$id` of a schema, which its references are relative to. Until draft 4 the keyword is `id`."""
    if not isinstance(schema, dict) or (dialect <= DRAFT_7 and "$ref" in schema):
        return None
    found = schema.get("id" if dialect <= DRAFT_4 else "$id")
    return found if isinstance(found, str) else None


def constraints(schema: Schema, dialect: int) -> Schema:
    """Return the constraints of a schema under 2020-12's keywords, without its references.

    Keywords that the dialect does not have yet are constraints too: who writes them means them.
    """
    if dialect <= DRAFT_7 and isinstance(schema.get("$ref"), str):  # until draft 7 nothing beside a reference counts
        return {}
    result = {keyword: schema[keyword] for keyword in schema if keyword in _CONSTRAINTS}
    if dialect == DRAFT_3:
        _convert_draft_3(result, schema)
    for keyword in _SIZES:
        if isinstance(result.get(keyword), float) and result[keyword].is_integer():
            result[keyword] = int(result[keyword])
    _convert_bounds(result)
    _convert_items(result)
    _convert_required(result)
    return result


def _convert_draft_3(result: Schema, schema: Schema) -> None:
    if "divisibleBy" in schema:
        result["multipleOf"] = schema["divisibleBy"]
    if "extends" in schema:
        bases = schema["extends"]
        result["allOf"] = [*result.get("allOf", ()), *(bases if isinstance(bases, list) else [bases])]
    if "type" in result:
        result |= _union(result.pop("type"))
    if "disallow" in schema:
        result["not"] = _union(schema["disallow"])


def _union(types: Any) -> Schema:
    """Return the schema of draft 3's `type`, in which schemas may stand among the names."""
    listed = types if isinstance(types, list) else [types]
    if "any" in listed:
        return {}
    if all(isinstance(name, str) for name in listed):
        return {"type": types}
    return {"anyOf": [{"type": name} if isinstance(name, str) else name for name in listed]}


def _convert_bounds(result: Schema) -> None:
    """Replace draft 4's `"minimum": 3, "exclusiveMinimum": true` by `"exclusiveMinimum": 3`."""
    for keyword, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(result.get(keyword), bool) and result.pop(keyword) and bound in result:
            result[keyword] = result.pop(bound)


def _convert_items(result: Schema) -> None:
    """Replace `items` that is a list, and the `additionalItems` after the list."""
    more = result.pop("additionalItems", None)
    if isinstance(result.get("items"), list):
        result["prefixItems"] = result.pop("items")
        if more is not None:
            result["items"] = more
    if result.get("prefixItems") == []:
        del result["prefixItems"]


def _convert_required(result: Schema) -> None:
    """Replace draft 3's `"required": true` within a property by a list beside the properties."""
    properties = result.get("properties")
    if isinstance(result.get("required"), bool):
        del result["required"]
    if isinstance(properties, dict):
        names = [name for name, part in properties.items() if isinstance(part, dict) and part.get("required") is True]
        listed = result.get("required", [])
        if names and isinstance(listed, list):
            result["required"] = list(dict.fromkeys([*map(str, listed), *names]))
    if result.get("required") == []:
        del result["required"]
