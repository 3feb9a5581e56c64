"""Schemas of every dialect in their static form: the check agrees with jsonschema's validator of the dialect."""

import json

import jsonschema
import pytest

from splitfuse.engine.language.structured_output.enforceable import enforceable
from splitfuse.engine.language.structured_output.schema_check import schema_errors
from splitfuse.engine.language.structured_output.schemas.document import TooManySchemasError
from splitfuse.engine.language.structured_output.schemas.static_schema import static_schema

DRAFT = "http://json-schema.org/draft-0{}/schema#".format
DRAFT_2019, DRAFT_2020 = (f"https://json-schema.org/draft/{name}/schema" for name in ("2019-09", "2020-12"))
STRING, INTEGER = {"type": "string"}, {"type": "integer"}
# A list whose items are the outermost node's: a tree closed against other properties.
TREE = {
    "$id": "https://example.com/tree",
    "$dynamicAnchor": "node",
    "type": "object",
    "properties": {"data": True, "children": {"items": {"$dynamicRef": "#node"}}},
}
STRICT_TREE = {
    "$schema": DRAFT_2020,
    "$id": "https://example.com/strict-tree",
    "$dynamicAnchor": "node",
    "$ref": "tree",
    "unevaluatedProperties": False,
    "$defs": {"tree": TREE},
}
OLD_TREE = {
    "$schema": DRAFT_2019,
    "$id": "https://example.com/strict-tree",
    "$recursiveAnchor": True,
    "$ref": "tree",
    "unevaluatedProperties": False,
    "$defs": {
        "tree": {
            "$id": "https://example.com/tree",
            "$recursiveAnchor": True,
            "properties": {"data": True, "children": {"items": {"$recursiveRef": "#"}}},
        }
    },
}
SCHEMAS = [
    {"$schema": DRAFT(3), "properties": {"a": {"type": "integer", "required": True}, "b": {"divisibleBy": 2}}},
    {"$schema": DRAFT(3), "type": ["integer", {"properties": {"a": STRING}}], "disallow": ["boolean"]},
    {"$schema": DRAFT(3), "extends": [{"minimum": 2}, {"type": "any"}], "dependencies": {"a": "b", "b": ["c"]}},
    {"$schema": DRAFT(4), "minimum": 1, "exclusiveMinimum": True, "maximum": 3, "exclusiveMaximum": False},
    {
        "$schema": DRAFT(4),
        "id": "http://example.com/x",
        "items": {"$ref": "x#a"},
        "definitions": {"A": {"id": "#a", **STRING}},
    },
    {"$schema": DRAFT(6), "items": [INTEGER, STRING], "additionalItems": False},
    {"$schema": DRAFT(7), "$ref": "#/definitions/a", "minimum": 5, "definitions": {"a": INTEGER}},
    {"$schema": DRAFT(7), "dependencies": {"a": {"required": ["b"]}, "b": ["c"]}},
    {"$schema": DRAFT(7), "items": {"$ref": "#/definitions/a/b"}, "definitions": {"a": {"b": {"uniqueItems": True}}}},
    {"$schema": DRAFT_2019, "items": [INTEGER], "additionalItems": STRING, "unevaluatedItems": False},
    {"$schema": DRAFT_2019, "properties": {"a": {"$ref": "#x"}}, "$defs": {"n": {"$anchor": "x", **INTEGER}}},
    OLD_TREE,
    {"$schema": DRAFT_2020, "prefixItems": [INTEGER], "contains": STRING, "unevaluatedItems": False},
    {"properties": {"a": True}, "allOf": [{"properties": {"b": INTEGER}}], "unevaluatedProperties": False},
    {
        "anyOf": [{"required": ["a"], "properties": {"a": True}}, {"properties": {"b": True}}],
        "unevaluatedProperties": STRING,
    },
    {
        "if": {"required": ["a"]},
        "then": {"properties": {"a": True}},
        "else": {"properties": {"b": True}},
        "unevaluatedProperties": False,
    },
    {"oneOf": [STRING, {"properties": {"a": {"$ref": "#/oneOf/1/properties/b"}, "b": INTEGER}}]},
    {"$id": "https://example.com/a", "properties": {"a": {"$ref": "b"}}, "$defs": {"b": {"$id": "b", **INTEGER}}},
    {"patternProperties": {"^a": INTEGER, "b$": STRING, "^(?!x)c": False}, "additionalProperties": INTEGER},
    {"properties": {"data": {"$ref": DRAFT(4)}}},
    STRICT_TREE,
]
VALUES = [
    *(None, True, 1, 2, 3, 6, "a", [], [1], [1, 1], [1, "a"], ["a"], [[1, 1]], [[1], [2]], {}, {"a": 1}, {"a": "x"}),
    *({"a": 1, "b": 2}, {"a": 1, "b": 3}, {"a": 1, "b": "x"}, {"b": 1}, {"b": [], "c": 1}, {"ab": 1}, {"c": 1}),
    {"x": "y"},
    *({"data": {"type": "string"}}, {"data": {"type": 5}}, {"data": {"minimum": 1, "exclusiveMinimum": 1}}),
    *({"children": [{"data": 1}]}, {"children": [{"daat": 1}]}, {"daat": 1}),
]  # fmt: skip


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_the_static_form_means_what_the_schema_means_in_its_dialect(schema):
    validator = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)(schema)
    static = static_schema(schema).schema
    for value in VALUES:
        assert (schema_errors(static, json.dumps(value)) == []) == validator.is_valid(value), value


@pytest.mark.parametrize("draft", [DRAFT(3), DRAFT(4), DRAFT(6), DRAFT(7), DRAFT_2019, DRAFT_2020])
def test_metaschemas_are_at_hand_and_check_schemas(draft):
    whole = static_schema({"$ref": draft}).schema
    assert schema_errors(whole, '{"properties": {"a": {"type": "string"}}}') == []
    assert schema_errors(whole, '{"properties": {"a": {"minLength": "x"}}}') != []


def test_other_documents_are_never_read():
    static = static_schema({"$ref": "other.json#/a", "properties": {"a": {"$ref": "https://json-schema.org/draft/x"}}})
    assert static.schema["$ref"] == "other.json#/a"


def test_only_what_is_reached_is_walked_and_noted_by_its_own_place():
    tags = {"type": "array", "uniqueItems": True}
    schema = {"items": {"$ref": "#/definitions/misc/tags"}, "definitions": {"misc": {"tags": tags, "x": {"not": {}}}}}
    assert [keyword.path for keyword in enforceable(schema).unenforced] == ["/definitions/misc/tags/uniqueItems"]
    schema = {"items": {"$ref": DRAFT(7)}}
    paths = [keyword.path for keyword in enforceable(schema).unenforced]
    assert "http://json-schema.org/draft-07/schema#/definitions/stringArray/uniqueItems" in paths


def anchors(number):
    parts = {f"{n}": {"$id": f"x:{n}", "$dynamicAnchor": f"a{n}", "$ref": f"x:{n + 1}"} for n in range(number)}
    return {"$defs": parts, "$ref": "x:0"}


BOMBS = {
    "scopes": anchors(2000),
    "copies": {
        "anyOf": [{"$ref": "#/$defs/0"}, {"required": ["a"]}],
        "type": "object",
        "$defs": {
            str(n): {"allOf": [{"$ref": f"#/$defs/{(n + 1) % 40}"}] * 2, "properties": {"a": {"$ref": "#/$defs/0"}}}
            for n in range(40)
        },
    },
    "many": {"anyOf": [{"items": [{}] * 100}] * 500},
}


@pytest.mark.parametrize("schema", BOMBS.values(), ids=BOMBS)
def test_a_schema_that_grows_as_it_is_written_out_is_refused(schema):
    with pytest.raises(TooManySchemasError):
        enforceable(schema)


DEEP = json.loads("[" * 400 + "]" * 400)
HOSTILE = {
    "branches": {"oneOf": [{}] * 30_000},
    "patterns": {"patternProperties": {f"a{n}": {"minimum": n} for n in range(20_000)}},
    "required": {"properties": {f"a{n}": {"required": True} for n in range(10_000)}, "required": []},
    "cycle": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "pointer": {"items": {"$ref": "#" + "/a" * 100_000}},
    "not schemas": {"$ref": [], "properties": DEEP, "allOf": 5, "anyOf": {}, "required": 5, "$id": [], "type": {}},
    "pattern": {"pattern": "(" * 50_000},
}


@pytest.mark.timeout(10)
@pytest.mark.parametrize("schema", HOSTILE.values(), ids=HOSTILE)
def test_hostile_schemas_are_read_in_bounded_time(schema):
    enforceable(schema)


def test_what_is_no_schema_is_left_to_the_compiler():
    assert enforceable({"allOf": 5, "not": {}}).schema == {"allOf": 5, "not": {}}
