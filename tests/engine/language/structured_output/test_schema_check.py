"""The check of finished answers agrees with jsonschema, and is abandoned if it takes too much work."""

import json
import random

import jsonschema
import pytest
from random_schemas import random_schema
from tables import table

from splitfuse.engine.language.structured_output.schema_check import (
    MAX_ERRORS,
    CannotCheckError,
    SchemaError,
    schema_errors,
)

SCHEMAS = table(__file__, "schemas")
VALUES = [
    *(None, True, False, 0, 1, 1.0, 2, 2.5, -1, 3.7),
    *("", "a", "b", "ab", "a b", "abcd", [], [1], [1, 1], [1, 1.0], [1, True]),
    *([1, []], [[], []], [1, 1, 1, 1], [{"a": 1}, {"a": 1.0}], {}, {"a": 1}, {"a": 2, "b": 1}, {"b": 1}, {"c": "x"}),
    *({"a": "x"}, {"a": 1, "b": 2, "c": 3}, [[[]]], [1, [1, [1]]]),
]


@pytest.mark.parametrize("schema", SCHEMAS, ids=json.dumps)
def test_it_agrees_with_jsonschema(schema):
    validator = jsonschema.Draft202012Validator(schema)
    for value in VALUES:
        assert (schema_errors(schema, json.dumps(value)) == []) == validator.is_valid(value), value


def test_it_agrees_on_random_schemas():
    rng = random.Random(1)
    schemas = [random_schema(rng, bounded=True) for _ in range(60)]
    for schema in schemas:
        negated = {"anyOf": [{"not": schema}, {"oneOf": [schema, rng.choice(schemas)]}]}
        for value in VALUES:
            valid = jsonschema.Draft202012Validator(negated).is_valid(value)
            assert (schema_errors(negated, json.dumps(value)) == []) == valid, (negated, value)


def test_errors_name_place_and_keyword():
    schema = {"properties": {"a/b": {"items": {"uniqueItems": True}}}}
    assert schema_errors(schema, '{"a/b": [[1], [2, 2]]}') == [SchemaError("/a~1b/1", "uniqueItems")]
    assert schema_errors(schema, '{"a/b": [[1], [2') == [SchemaError("", "json")]
    assert len(schema_errors({"items": False}, json.dumps([0] * 50))) == MAX_ERRORS


@pytest.mark.parametrize(
    "schema",
    [
        {"not": {"$ref": "#"}},
        {
            "allOf": [{"$ref": "#/$defs/0"}],
            "$defs": {str(i): {"oneOf": [{"$ref": f"#/$defs/{i + 1}"}] * 2} for i in range(40)},
        },
        {"allOf": [{"pattern": f"a\\b|{i} \\w"} for i in range(100)]},
        {"not": {"pattern": r"(\p{L}{1,80}x){1,80}"}},
        {"not": 5, "contains": "x", "dependentRequired": 5},
        {"minContains": "a", "contains": {}},
        {"enum": 5},
    ],
    ids=["loop", "exponential", "many patterns", "large pattern", "not a schema", "not a number", "not a list"],
)
def test_what_cannot_be_checked_in_time_is_given_up(schema):
    value = [1] if "contains" in schema else "a"
    if "not" in schema and schema["not"] == 5:
        value = {"a": 1}
    with pytest.raises(CannotCheckError):
        schema_errors(schema, json.dumps(value))
