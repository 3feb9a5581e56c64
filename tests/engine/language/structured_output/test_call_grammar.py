"""Object schemas of tools that are closed."""

import pytest

from splitfuse.engine.language.structured_output.call_grammar import arguments_schema

CITY = {"properties": {"city": {"type": "string"}}}
CLOSED_CITY = CITY | {"additionalProperties": False}


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        (None, {"properties": {}, "additionalProperties": False}),
        ({}, {"properties": {}, "additionalProperties": False}),
        (CITY, CLOSED_CITY),
        ({"properties": {}}, {"properties": {}, "additionalProperties": False}),
        # schemas within others
        ({"properties": {"a": CITY}}, {"properties": {"a": CLOSED_CITY}, "additionalProperties": False}),
        (
            {"properties": {"a": {"type": "array", "items": CITY}}, "$defs": {"b": CITY}},
            {
                "properties": {"a": {"type": "array", "items": CLOSED_CITY}},
                "$defs": {"b": CLOSED_CITY},
                "additionalProperties": False,
            },
        ),
        ({"anyOf": [CITY, True]}, {"anyOf": [CLOSED_CITY, True]}),
        # a property named like a keyword
        (
            {"properties": {"properties": {"type": "string"}}},
            {"properties": {"properties": {"type": "string"}}, "additionalProperties": False},
        ),
    ],
)
def test_objects_are_closed_to_what_they_declare(parameters, expected) -> None:
    assert arguments_schema({"name": "f", "parameters": parameters}) == {"type": "object", **expected}


@pytest.mark.parametrize(
    "parameters",
    [
        {"type": "object"},
        {"additionalProperties": {"type": "string"}},
        CITY | {"additionalProperties": True},
        CITY | {"patternProperties": {"^x": {}}},
        CITY | {"required": ["other"]},
        # objects described by several schemas
        {"allOf": [CITY, {"properties": {"b": {}}}]},
        CITY | {"anyOf": [{"properties": {"b": {}}}, {"properties": {"c": {}}}]},
        CITY | {"$ref": "#/$defs/b", "$defs": {"b": {"properties": {"b": {}}}}},
        {"properties": {"a": CITY | {"allOf": [CITY]}}},
    ],
)
def test_other_schemas_stay_as_they_are(parameters) -> None:
    assert arguments_schema({"name": "f", "parameters": parameters}) == {"type": "object", **parameters}
