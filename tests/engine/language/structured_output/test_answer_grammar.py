"""Grammars of whole answers: the texts they accept, and the demo model's answers under them."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest
import tokenizers
from jsonschema import validate
from llguidance import LLMatcher, LLTokenizer
from published import published

from splitfuse.engine import LLM, ChatForm, SamplingParams
from splitfuse.engine.config import DEMO_FOLDER
from splitfuse.engine.errors import ConfigError, InvalidRequestError
from splitfuse.engine.language.chat.answer_parser import AnswerParser
from splitfuse.engine.language.chat.answer_parts import read_whole
from splitfuse.engine.language.chat.call_formats import CALL_FORMATS
from splitfuse.engine.language.chat.reasoning_parser import REASONING_FORMATS
from splitfuse.engine.language.structured_output.answer_grammar import answer_grammar
from splitfuse.engine.language.structured_output.params import StructuredOutputs
from splitfuse.engine.language.text.tokenizer import Tokenizer

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


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(dtype="float32", max_model_len=512)


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
    may = answer_grammar(reasoning="think", content=CONTENT[kind])
    assert accepts(may, fitting)
    assert accepts(may, f"<think>\nHm {{ [ é.\n</think>\n\n{fitting}")
    assert not accepts(may, f"<think>Hm.{fitting}")
    must = answer_grammar(reasoning="think", is_open=True, content=CONTENT[kind])
    assert accepts(must, f"Hm.</think>\n\n{fitting}")
    assert not accepts(must, fitting)


def test_a_grammar_of_the_requests_own_cannot_be_a_part() -> None:
    own = StructuredOutputs(grammar='start: "x"')
    with pytest.raises(InvalidRequestError, match="cannot go with tools") as info:
        answer_grammar(style="hermes", tools=TOOLS, content=own)
    assert info.value.param == "structured_outputs.grammar"
    with pytest.raises(InvalidRequestError, match="not valid JSON") as info:
        answer_grammar(reasoning="think", content=StructuredOutputs(json="{"))
    assert info.value.param == "structured_outputs.json"


def xml(name: str, parameters: str) -> str:
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


def test_calls_as_qwen3_coder_writes_them(accepts) -> None:
    properties = {
        "note": {"type": "string"},
        "unit": {"type": "string", "enum": ["C", "F"]},
        "short": {"type": "string", "maxLength": 2},
        "days": {"$ref": "#/$defs/days"},
    }
    schema = {"properties": properties, "required": ["unit"], "$defs": {"days": {"type": "integer"}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}, TOOLS[1]]
    grammar = answer_grammar(style="qwen3_coder", tools=tools)
    unit, note = "<parameter=unit>\nC\n</parameter>\n", '<parameter=note>\n"a" <b>\n\n</parameter>\n'
    short, days = "<parameter=short>\nab\n</parameter>\n", "<parameter=days>\n3\n</parameter>\n"
    for fine in (unit, note + unit + short + days, unit + days):
        assert accepts(grammar, xml("f", fine)), fine
    assert accepts(grammar, xml("f", unit + short.replace("ab", "a"))), "shorter than its maxLength"
    assert accepts(grammar, f"{xml('now', '')}\n{xml('f', unit)}")
    for wrong in ("", note, unit.replace("C", "K"), unit + short.replace("ab", "abc"), unit + days.replace("3", "x")):
        assert not accepts(grammar, xml("f", wrong)), wrong


def test_calls_as_llama_4_writes_them(accepts) -> None:
    properties = {"a": {"type": "integer"}, "b": {"type": "string"}, "c": {"type": "boolean"}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"properties": properties}}}, TOOLS[1]]
    grammar = answer_grammar(style="llama4_pythonic", tools=tools)
    for fine in ("[f()]", "[f(a=1)]", '[f(b="x", c=true)]', "[f(a=1, c=false), now()]"):
        assert accepts(grammar, fine), fine
    for wrong in ("[]", "[f(c=true, a=1)]", "[f(a=1 c=true)]", "[f(, a=1)]", "[now(a=1)]", "[f(a='x')]"):
        assert not accepts(grammar, wrong), wrong
    tools[0]["function"]["parameters"]["required"] = ["b"]
    grammar = answer_grammar(style="llama4_pythonic", tools=tools)
    assert accepts(grammar, '[f(a=1, b="x")]')
    assert accepts(grammar, '[f(b="x")]')
    assert not accepts(grammar, "[f(a=1)]")


def test_harmony_puts_content_on_a_channel_of_its_own(accepts) -> None:
    grammar = answer_grammar(style="openai", tools=TOOLS, reasoning="openai_gptoss", content=CONTENT["choice"])
    call = f"<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{WEATHER}"
    for fine in (call, "<|channel|>final<|message|>yes"):
        assert accepts(grammar, fine), fine
    assert not accepts(grammar, "yes")
    assert not accepts(grammar, call + call)


FREE = {
    "hermes": hermes("weather", WEATHER),
    "qwen3_coder": xml("now", ""),
    "mistral_list": '[TOOL_CALLS][{"name": "now", "arguments": {}}]',
    "mistral": f"[TOOL_CALLS]weather[ARGS]{WEATHER}",
    "deepseek_v31": (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{WEATHER}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    ),
}


@pytest.mark.parametrize("style", FREE)
def test_a_call_that_begins_in_a_free_answer(accepts, style: str) -> None:
    grammar, call = answer_grammar(is_free=True, style=style, tools=TOOLS), FREE[style]
    trigger = CALL_FORMATS[style].trigger
    for fine in ("", "Hello.", f"{trigger[:-1]} is text", call, f"I look.\n{call}\nAnd {call} again."):
        assert accepts(grammar, fine), fine
    for wrong in (f"{trigger}x", f"x {trigger}", call.replace("weather", "rain").replace("now", "rain")):
        assert not accepts(grammar, wrong), wrong
    single = answer_grammar(is_free=True, style=style, tools=TOOLS, is_parallel=False)
    assert accepts(single, "Hello.")
    assert not accepts(single, f"{call} {call}")


def test_arguments_that_are_not_checked_are_any_object(accepts) -> None:
    grammar = answer_grammar(is_free=True, style="hermes", tools=TOOLS, unchecked={"weather"})
    assert accepts(grammar, hermes("weather", '{"x": 1}'))
    assert not accepts(grammar, hermes("weather", "[]"))
    assert not accepts(grammar, hermes("now", '{"x": 1}'))


def test_keys_come_from_the_schema_of_an_unchecked_function_too(accepts) -> None:
    grammar = answer_grammar(is_free=True, style="qwen3_coder", tools=TOOLS, unchecked={"weather"})
    town, days = "<parameter=town>\nRome\n</parameter>\n", "<parameter=days>\n3\n</parameter>\n"
    assert accepts(grammar, xml("weather", town + days))
    assert not accepts(grammar, xml("weather", ""))


def test_no_call_begins_in_reasoning(accepts) -> None:
    call = hermes("now", "{}")
    may = answer_grammar(is_free=True, style="hermes", tools=TOOLS, reasoning="think")
    must = answer_grammar(is_free=True, style="hermes", tools=TOOLS, reasoning="think", is_open=True)
    for fine in (f"<think>a <tool_call> b</think>\n{call}", "Hello", "<think>a</think>"):
        assert accepts(may, fine), fine
    assert accepts(must, f"a <tool_call> b</think>{call}")
    assert not accepts(may, "<think>a</think><tool_call>b")
    assert not accepts(must, "a</think><tool_call>b")


def test_special_tokens_are_written_as_such() -> None:
    ids = {"[TOOL_CALLS]": 5, "[ARGS]": 6}
    grammar = answer_grammar(is_free=True, style="mistral", tools=TOOLS[1:2], special_ids=ids)
    assert "before: TEXT <[5]>" in grammar
    assert 'tool_0: "now" <[6]> %json' in grammar
    assert '"[TOOL_CALLS]' not in grammar
    forced = answer_grammar(style="mistral", tools=TOOLS[1:2], special_ids=ids)
    assert 'tool_0: <[5]> "now" <[6]> %json' in forced


def test_added_tokens_that_are_not_special_begin_calls_and_end_reasoning(tmp_path: Path) -> None:
    """Qwen's <tool_call> and <think> are such tokens: decoded as text, and no text in a grammar matches them."""
    fast = tokenizers.Tokenizer.from_file(str(DEMO_FOLDER / "tokenizer.json"))
    tags = ["<tool_call>", "</tool_call>", "<think>", "</think>"]
    fast.add_tokens([tokenizers.AddedToken(tag, normalized=False) for tag in tags])
    fast.save(str(tmp_path / "tokenizer.json"))
    tokenizer = Tokenizer(tmp_path)
    ids = tokenizer.special_ids([*CALL_FORMATS["hermes"].special_texts, *REASONING_FORMATS["think"].special_texts])
    assert set(ids) == set(tags)
    theirs = LLTokenizer(fast.to_str(), n_vocab=fast.get_vocab_size(), eos_token=0)
    text = f"<think>Hm.</think>\n{hermes('now', '{}')}"
    for is_free in (False, True):
        grammar = answer_grammar(style="hermes", tools=TOOLS, is_free=is_free, reasoning="think", special_ids=ids)
        matcher = LLMatcher(theirs, LLMatcher.grammar_from_lark(grammar))
        assert matcher.consume_tokens(tokenizer.encode(text)), matcher.get_error()
        assert matcher.is_accepting()


@pytest.mark.parametrize("style", {form: name for name, form in CALL_FORMATS.items()}.values())
def test_the_demo_model_calls_when_it_must(llm: LLM, style: str) -> None:
    grammar = answer_grammar(style=style, tools=TOOLS[:2], is_parallel=False)
    params = SamplingParams(n=12, seed=5, max_tokens=300, structured_outputs=StructuredOutputs(grammar=grammar))
    (output,) = llm.chat([{"role": "user", "content": "How is the weather?"}], params)
    schemas = {"weather": SCHEMA, "now": {"properties": {}, "additionalProperties": False}}
    names = set()
    for one in output.outputs:
        name, arguments = read_whole(AnswerParser(CALL_FORMATS[style], None, TOOLS), one.text)
        assert (name.kind, arguments.kind, one.finish_reason) == ("call", "arguments", "stop"), one.text
        validate(json.loads(arguments.text), schemas[name.text])
        names.add(name.text)
    assert names == set(schemas)


PUBLISHED = {path.stem: path for path in sorted(published("conformance/templates").glob("*.jinja"))}


@pytest.mark.parametrize("name", PUBLISHED)
def test_calls_in_the_form_of_a_published_template(accepts, name: str) -> None:
    try:
        form = ChatForm.derive(PUBLISHED[name].read_text())
    except ConfigError:
        return
    if form.calls is None or form.calls.arguments == "channels":
        return
    schema = {"type": "object", "properties": {"days": {"type": "integer"}, "town": {"type": "string"}}}
    tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
    calls = [("weather", {"days": 3, "town": "R"}), ("weather", {"days": 4})][: 1 + form.has_parallel_calls]
    text = form.render_calls(calls)
    if form.calls.arguments == "json" and '{"days": 3, "town": "R"}' not in text:
        return  # JSON with line breaks, which grammars forbid
    ends = range(len(text), len(text) - 60, -1)  # what the template puts after the calls ends the turn
    grammar = answer_grammar(style=asdict(form.calls), tools=tools)
    assert any(accepts(grammar, text[:end]) for end in ends), (grammar, text)
    assert not any(accepts(grammar, text[:end].replace("days", "weeks")) for end in ends)
    if form.calls.trigger:
        free = answer_grammar(is_free=True, style=asdict(form.calls), tools=tools)
        assert any(accepts(free, f"So. {text[:end]}") for end in ends), (free, text)
