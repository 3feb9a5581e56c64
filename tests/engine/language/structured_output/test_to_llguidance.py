"""Texts that the grammars of schemas accept, and places that refusals name."""

import json

import pytest
from llguidance import LLMatcher, LLTokenizer

from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.language.structured_output.answer_grammar import answer_grammar
from splitfuse.engine.language.structured_output.params import StructuredOutputs
from splitfuse.engine.language.structured_output.refusal import refusal
from splitfuse.engine.language.structured_output.sandbox_worker import _shortened
from splitfuse.engine.language.structured_output.to_llguidance import grammar_source

TOKENIZER = LLTokenizer("byte")
STRING = {"type": "string"}


def accepts(schema, value, *, relaxes=False):
    matcher = LLMatcher(TOKENIZER, grammar_source(StructuredOutputs(json=schema, relaxes=relaxes)), log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.consume_tokens(TOKENIZER.tokenize_str(json.dumps(value))) and matcher.is_accepting()


@pytest.mark.parametrize(
    ("schema", "fitting", "other"),
    [
        ({**STRING, "format": "time"}, "23:59:59Z", "23:59:60Z"),
        ({**STRING, "format": "date-time"}, "2026-01-01T23:59:59Z", "2026-01-01T23:59:60Z"),
        ({**STRING, "format": "path"}, "/tmp/x", 1),
        ({**STRING, "pattern": r"^(?=.*[A-Z])(?=.*\d).{3,}$"}, "aB1", "ab1"),
        ({"oneOf": [{"type": "integer"}, STRING]}, 1, None),
        (
            {"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": {"type": "null"}},
            {"a": None},
            {"b": None},
        ),
        ({"type": "object", "propertyNames": {"pattern": "^a"}}, {"ab": 1}, {"b": 1}),
    ],
)
def test_what_a_grammar_can_is_enforced(schema, fitting, other):
    assert accepts(schema, fitting)
    assert not accepts(schema, other)


@pytest.mark.parametrize(
    ("schema", "fitting"),
    [
        ({"type": "array", "items": STRING, "uniqueItems": True}, ["a"]),
        ({**STRING, "not": {"const": "a"}}, "b"),
        ({"type": "object", "if": {"required": ["a"]}, "then": {"required": ["b"]}}, {"a": 1, "b": 2}),
        ({"oneOf": [{"type": "object"}, {"type": "object", "required": ["a"]}]}, {}),
        ({**STRING, "pattern": r"^\bfoo\b.*$"}, "foo bar"),
    ],
)
def test_what_it_cannot_is_left_out_only_where_the_answer_is_checked(schema, fitting):
    assert accepts(schema, fitting, relaxes=True)
    with pytest.raises(AssertionError, match=r"Unimplemented keys|oneOf|look"):
        accepts(schema, fitting)


def reason(source):
    return _shortened(LLMatcher(TOKENIZER, source, log_level=0).get_error())


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"properties": {"a": {"type": "nothing"}}}, "at /properties/a/type: Invalid type: nothing"),
        ({"properties": {"a/b": {"minItems": "x"}}}, "at /properties/a~1b/minItems: Expected positive integer"),
        ({"properties": {"a": {"prefixItems": [{"$ref": "#/nowhere"}]}}}, "at /properties/a/prefixItems/0/$ref: "),
    ],
)
def test_a_refusal_names_the_place_in_the_schema_and_the_tool(schema, place):
    outputs = StructuredOutputs(json=schema, param="response_format.json_schema.schema")
    error = refusal(outputs, reason(grammar_source(outputs)))
    assert str(error).startswith(f"response_format.json_schema.schema cannot be used: {place}")
    tools = [{"function": {"name": "one"}}, {"function": {"name": "two.b-2", "parameters": schema}}]
    called = StructuredOutputs(grammar=answer_grammar(style="hermes", tools=tools), param="tools")
    error = refusal(called, reason(grammar_source(called)))
    assert str(error).startswith(f"tools: the parameters of two.b-2 cannot be used: {place}")
    content = StructuredOutputs(grammar=answer_grammar(content=outputs, reasoning="think"), param=outputs.name)
    error = refusal(content, reason(grammar_source(content)))
    assert str(error).startswith(f"response_format.json_schema.schema cannot be used: {place}")


def test_a_grammar_of_the_requests_own_keeps_the_compilers_words():
    outputs = StructuredOutputs(grammar="start: unknown")
    error = refusal(outputs, reason(grammar_source(outputs)))
    assert str(error).startswith("structured_outputs.grammar cannot be used: at 1(")
    assert isinstance(error, InvalidRequestError)
