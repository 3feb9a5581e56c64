"""Enforceable parts of schemas, and the keywords noted as left out."""

import pytest

from splitfuse.engine.language.structured_output.enforceable import Unenforced, enforceable

STRING, INTEGER = {"type": "string"}, {"type": "integer"}
CAT = {"type": "object", "properties": {"kind": {"const": "cat"}}, "required": ["kind"]}
DOG = {"type": "object", "properties": {"kind": {"enum": ["dog", "wolf"]}}, "required": ["kind"]}
DEFS = {"$defs": {"Cat": CAT, "Dog": DOG}}
REFS = [{"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}]

ENFORCED = [
    ({"type": "array", "items": STRING}, None),
    ({"type": "array", "uniqueItems": False}, {"type": "array"}),
    ({"type": "array", "uniqueItems": True, "maxItems": 1}, {"type": "array", "maxItems": 1}),
    ({**STRING, "format": "path"}, STRING),
    ({**STRING, "format": "email"}, None),
    ({"oneOf": REFS, **DEFS}, {"anyOf": REFS, **DEFS}),
    ({"oneOf": [STRING, INTEGER]}, {"anyOf": [STRING, INTEGER]}),
    ({"type": "object", "propertyNames": STRING}, {"type": "object"}),
    (
        {"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": INTEGER},
        {"type": "object", "properties": {"a": INTEGER, "b": INTEGER}, "additionalProperties": False},
    ),
    (
        {"type": "object", "propertyNames": {"pattern": "^a"}, "additionalProperties": INTEGER},
        {"type": "object", "patternProperties": {"^a": INTEGER}, "additionalProperties": False},
    ),
    ({"pattern": "^(?=a)[ab]+$"}, {"pattern": "^(?:a)", "allOf": [{"pattern": "^[ab]+$"}]}),
    ({"if": STRING}, {}),
    ({"const": {"not": 1, "uniqueItems": True}}, None),
    ({"properties": {"not": STRING, "if": STRING, "oneOf": STRING}}, None),
]


@pytest.mark.parametrize(("schema", "expected"), ENFORCED)
def test_what_is_enforced_is_not_noted(schema, expected):
    result = enforceable(schema)
    assert result.schema == (schema if expected is None else expected)
    assert result.unenforced == ()


LEFT_OUT = [
    ({"type": "array", "uniqueItems": True}, ["/uniqueItems"]),
    ({"properties": {"a/b~": {"not": {}}}}, ["/properties/a~1b~0/not"]),
    ({"if": {}, "then": {"not": {}}}, ["/if"]),
    ({"if": {"items": STRING}, "unevaluatedItems": False}, ["/unevaluatedItems"]),
    ({"if": {}, "then": STRING, "unevaluatedProperties": False}, ["/if", "/unevaluatedProperties"]),
    ({"oneOf": [STRING, {"not": {}}]}, ["/oneOf", "/oneOf/1/not"]),
    ({"oneOf": [INTEGER, {"type": "number"}]}, ["/oneOf"]),
    ({"anyOf": [{"items": [{"contains": {}}]}], "minContains": 2}, ["/anyOf/0/items/0/contains"]),
    ({"$ref": "#/$defs/A", "$defs": {"A": {"dependentRequired": {"a": ["b"]}}}}, ["/$defs/A/dependentRequired"]),
    ({"propertyNames": {"minLength": 2}}, ["/propertyNames"]),
    ({"properties": {"a": {}}, "propertyNames": {"enum": ["a"]}}, ["/propertyNames"]),
    ({"pattern": r"\ba"}, ["/pattern"]),
]


@pytest.mark.parametrize(("schema", "paths"), LEFT_OUT)
def test_what_is_left_out_is_noted_with_its_place(schema, paths):
    result = enforceable(schema)
    assert sorted(keyword.path for keyword in result.unenforced) == paths
    assert enforceable(result.schema).unenforced == ()
    assert all(keyword.is_checked for keyword in result.unenforced)


def test_look_around_within_a_pattern_cannot_be_checked():
    assert enforceable({"pattern": "a(?=b)b"}).unenforced == (Unenforced("/pattern", is_checked=False),)


def test_seconds_end_at_59_beside_a_pattern_of_the_schemas_own():
    relaxed = enforceable({"format": "time", "pattern": "Z$"}).schema
    assert relaxed["format"] == "time"
    assert {part["pattern"] for part in [relaxed, *relaxed["allOf"]]} == {r"^\d\d:\d\d:[0-5]", "Z$"}
