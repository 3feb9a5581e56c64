"""Grammars of whole answers: what they let through, and what the demo model writes under them."""

import json

import pytest
from jsonschema import validate
from llguidance import LLMatcher, LLTokenizer

from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.chat.answer_parts import read_whole
from splitfuse.engine.chat.tool_parsers.registry import TOOL_FORMATS
from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.errors import InvalidRequestError
from splitfuse.engine.structured_output.answer_grammar import answer_grammar
from splitfuse.engine.structured_output.params import StructuredOutputs
from splitfuse.engine.tokenizer.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"town": {"$ref": "#/$defs/town"}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["town", "days"],
    "additionalProperties": False,
    "$defs": {"town": {"type": "string", "maxLength": 8, "description": 'a ::= b "quoted" / \\ ☕'}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "now"}},
    {"type": "function", "function": {"name": "any.thing-1", "parameters": {"properties": {"a": {"enum": [1, "x"]}}}}},
]
CONTENT = {
    "json": StructuredOutputs(json={"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}),
    "json_object": StructuredOutputs(json_object=True),
    "choice": StructuredOutputs(choice=["yes", 'no "!"']),
    "regex": StructuredOutputs(regex=r"[a-f]{2,4}/\d+"),
}
FITTING = {"json": '{"a": true}', "json_object": '{"x": [1]}', "choice": 'no "!"', "regex": "abc/42"}
WEATHER = '{"town": "Rome", "days": 3}'


@pytest.fixture(scope="module")
def accepts():
    tokenizer = Tokenizer(DEMO_FOLDER)
    theirs = LLTokenizer((DEMO_FOLDER / "tokenizer.json").read_text(), n_vocab=4096, eos_token=0)

    def accepts(grammar: str, text: str) -> bool:
        source = LLMatcher.grammar_from_lark(grammar)
        assert not LLMatcher.validate_grammar(source), LLMatcher.validate_grammar(source)
        matcher = LLMatcher(theirs, source)
        return matcher.consume_tokens(tokenizer.encode(text)) and matcher.is_accepting()

    return accepts


def hermes(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_calls_as_hermes_writes_them(accepts) -> None:
    grammar = answer_grammar(style="hermes", tools=TOOLS)
    one, two, three = hermes("weather", WEATHER), hermes("now", "{}"), hermes("any.thing-1", '{"a": "x"}')
    for fine in (one, two, three, f"{one}\n{two}\n{one}"):
        assert accepts(grammar, fine), fine
    for wrong in (
        "",
        "Hello",
        WEATHER,
        one + two,
        one + "\n",
        hermes("rain", "{}"),
        hermes("weather", "{}"),
        hermes("weather", '{"town": "Rome", "days": 10}'),
        hermes("now", '{"a": 1}'),
        hermes("any.thing-1", '{"a": 2}'),
        hermes("any.thing-1", "[]"),
    ):
        assert not accepts(grammar, wrong), wrong
    single = answer_grammar(style="hermes", tools=TOOLS, is_parallel=False)
    assert accepts(single, one)
    assert not accepts(single, f"{one}\n{two}")


def test_calls_as_llama_writes_them(accepts) -> None:
    grammar = answer_grammar(style="llama3_json", tools=TOOLS)
    call = f'{{"name": "weather", "parameters": {WEATHER}}}'
    assert accepts(grammar, call)
    assert accepts(grammar, f'{call}; {{"name": "now", "parameters": {{}}}}')
    assert not accepts(grammar, f"{call}{call}")
    assert not accepts(grammar, call.replace("parameters", "arguments"))


@pytest.mark.parametrize("kind", CONTENT)
def test_calls_or_content(accepts, kind: str) -> None:
    grammar = answer_grammar(style="hermes", tools=TOOLS, content=CONTENT[kind])
    assert accepts(grammar, hermes("now", "{}"))
    assert accepts(grammar, FITTING[kind])
    assert not accepts(grammar, "neither")
    assert not accepts(grammar, FITTING[kind] + hermes("now", "{}"))


@pytest.mark.parametrize("kind", CONTENT)
def test_reasoning_before_content(accepts, kind: str) -> None:
    fitting = FITTING[kind]
    may = answer_grammar(thinks=True, content=CONTENT[kind])
    assert accepts(may, fitting)
    assert accepts(may, f"<think>\nHm {{ [ é.\n</think>\n\n{fitting}")
    assert not accepts(may, f"<think>Hm.{fitting}")
    must = answer_grammar(thinks=True, is_open=True, content=CONTENT[kind])
    assert accepts(must, f"Hm.</think>\n\n{fitting}")
    assert not accepts(must, fitting)


def test_a_grammar_of_the_requests_own_cannot_be_a_part() -> None:
    own = StructuredOutputs(grammar='start: "x"')
    with pytest.raises(InvalidRequestError, match="cannot go with tools") as info:
        answer_grammar(style="hermes", tools=TOOLS, content=own)
    assert info.value.param == "structured_outputs.grammar"
    with pytest.raises(InvalidRequestError, match="not valid JSON") as info:
        answer_grammar(thinks=True, content=StructuredOutputs(json="{"))
    assert info.value.param == "structured_outputs.json"


@pytest.mark.parametrize("style", TOOL_FORMATS)
def test_the_demo_model_calls_when_it_must(style: str) -> None:
    llm = LLM(dtype="float32", max_model_len=512)
    grammar = answer_grammar(style=style, tools=TOOLS[:2], is_parallel=False)
    params = SamplingParams(n=8, seed=1, max_tokens=300, structured_outputs=StructuredOutputs(grammar=grammar))
    (output,) = llm.chat([{"role": "user", "content": "How is the weather?"}], params)
    schemas = {"weather": SCHEMA, "now": {"properties": {}, "additionalProperties": False}}
    names = set()
    for one in output.outputs:
        name, arguments = read_whole(TOOL_FORMATS[style].reader(TOOLS), one.text)
        assert (name.kind, arguments.kind, one.finish_reason) == ("call", "arguments", "stop"), one.text
        validate(json.loads(arguments.text), schemas[name.text])
        names.add(name.text)
    assert names == set(schemas)
