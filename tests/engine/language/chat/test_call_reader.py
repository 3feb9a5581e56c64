"""Calls in every named format: the parts found, which are equal wherever the text is cut."""

import json
import random
import time
from collections.abc import Callable
from typing import Any

import pytest
from answer_pieces import call, content, read_in_pieces, reasoning

from splitfuse.engine.language.chat.answer_parser import AnswerParser
from splitfuse.engine.language.chat.answer_parts import AnswerPart, Reader, read_whole
from splitfuse.engine.language.chat.call_formats import CALL_FORMATS, call_syntax, declared_format
from splitfuse.engine.language.chat.json_call import CallReader

PARAMETERS = {
    "properties": {
        "town": {"type": "string"},
        "days": {"type": "integer"},
        "is_dry": {"type": "boolean"},
        "note": {"type": ["string", "null"]},
        "tags": {"type": "array"},
        "unit": {"enum": ["C", "F"]},
        "code": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
        "sky": {"$ref": "#/$defs/sky"},
        "knot": {"$ref": "#/$defs/knot"},
    },
    "$defs": {"sky": {"type": "string", "enum": ["0", "8"]}, "knot": {"$ref": "#/$defs/knot"}},
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "f"}},
]
ARGUMENTS = '{"town": "K\\u00f6ln \\" } ]", "days": [1, {"a": null}], "x": -1.5e3}'
BEGIN, END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL, SEP, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"


def reader(name: str) -> Reader:
    return AnswerParser(CALL_FORMATS[name], None, TOOLS)


def xml(name: str, **values: str) -> str:
    parameters = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{parameters}</function>\n</tool_call>"


Case = tuple[str, list[AnswerPart]]

LISTS: Callable[[str], list[Case]] = lambda tag: [  # noqa: E731
    ("", []),
    (f'{tag}[{{"name": "f", "arguments": {ARGUMENTS}}}]', call("f", ARGUMENTS)),
    (
        f'See: \n{tag}[{{"name": "f", "arguments": {{}}}}, {{"name": "weather", "arguments": {{"a": 1}}}}]\n',
        [content("See:"), *call("f", "{}"), *call("weather", '{"a": 1}', 1)],
    ),
    (f'{tag}[{{"name": "f", "arguments": {{"a": "☕}}"}}}}] So. ', [*call("f", '{"a": "☕}"}'), content("So. ")]),
    (f'{tag}[{{"name": "f", "arguments": {{"a": "never en', call("f", '{"a": "never en')),
    (f'{tag}[{{"x": 1}}] and', [content(f'{tag}[{{"x": 1}}] and')]),
]
HERMES: list[Case] = [
    ("", []),
    ("Hello  \n", [content("Hello  \n")]),
    ("a < b <tool <tool_cal", [content("a < b <tool <tool_cal")]),
    (f'<tool_call>\n{{"name": "f", "arguments": {ARGUMENTS}}}\n</tool_call>', call("f", ARGUMENTS)),
    (f'<tool_call>{{"name":"f","parameters":{ARGUMENTS}}}</tool_call>', call("f", ARGUMENTS)),
    (
        'Let me see.\n\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n',
        [content("Let me see."), *call("f", "{}")],
    ),
    (
        '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n<tool_call>{"name": "g"}</tool_call>',
        [*call("f", '{"a": 1}'), *call("g", "{}", 1)],
    ),
    (
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n So. ',
        [*call("f", "{}"), content("So. ")],
    ),
    (
        'Sure.\n<tool_call>{"name": "f", "arguments": {}}</tool_call>\n\nDone',
        [content("Sure."), *call("f", "{}"), content("\nDone")],
    ),
    (
        'Sure.<tool_call>{"name": "f", "arguments": {}}</tool_call> Done',
        [content("Sure."), *call("f", "{}"), content(" Done")],
    ),
    # the arguments come first, are missing, null, a string of JSON, or twice
    (f'<tool_call>{{"arguments": {ARGUMENTS}, "name": "f"}}</tool_call>', call("f", ARGUMENTS)),
    ('<tool_call>{"name": "f"}</tool_call>', call("f", "{}")),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', call("f", "{}")),
    ('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>', call("f", '{"a": 1}')),
    ('<tool_call>{"arguments": "{\\"a\\": 1}", "name": "f"}</tool_call>', call("f", '{"a": 1}')),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}, "parameters": {"b": 2}}</tool_call>', call("f", '{"a": 1}')),
    ('<tool_call>{"id": 5, "x": "y", "name": "f", "arguments": {}, "z": [1]}</tool_call>', call("f", "{}")),
    # several calls in one pair of tags
    (
        '<tool_call>[{"name": "f", "arguments": {}},\n{"name": "g", "arguments": {"b": 2}}]</tool_call>',
        [*call("f", "{}"), *call("g", '{"b": 2}', 1)],
    ),
    (
        '<tool_call>{"name": "f", "arguments": {}}\n{"name": "g", "arguments": {"b": 2}}</tool_call> So.',
        [*call("f", "{}"), *call("g", '{"b": 2}', 1), content("So.")],
    ),
    # cut off: the name is out already, so the incomplete arguments stay
    ('<tool_call>{"name": "f", "arguments": {"a": "never en', call("f", '{"a": "never en')),
    ('<tool_call>{"name": "f", "argum', [content('<tool_call>{"name": "f", "argum')]),
    ('<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_', call("f", '{"a": 1}')),
    ('<tool_call>{"na', [content('<tool_call>{"na')]),
    # no calls: the unchanged text
    ("<tool_call>hello</tool_call> you", [content("<tool_call>hello</tool_call> you")]),
    ("<tool_call></tool_call>", [content("<tool_call></tool_call>")]),
    ('<tool_call>{"x": 1}</tool_call>', [content('<tool_call>{"x": 1}</tool_call>')]),
    ('<tool_call>{"name": 5}</tool_call>', [content('<tool_call>{"name": 5}</tool_call>')]),
    ('<tool_call>{"name": ""}</tool_call>', [content('<tool_call>{"name": ""}</tool_call>')]),
    ("<tool_call>{x}</tool_call>", [content("<tool_call>{x}</tool_call>")]),
    (
        'I write <tool_call> and then <tool_call>{"name": "f", "arguments": {}}</tool_call>',
        [content("I write <tool_call> and then"), *call("f", "{}")],
    ),
    (
        '<tool_call>{"name": "f", "arguments": {"a": 1} oops}</tool_call> next',
        [*call("f", '{"a": 1}'), content("oops}</tool_call> next")],
    ),
]
LLAMA3: list[Case] = [
    ("", []),
    ("Hello  \n", [content("Hello  \n")]),
    (f'{{"name": "weather", "parameters": {ARGUMENTS}}}', call("weather", ARGUMENTS)),
    (f'\n <|python_tag|>{{"name": "weather", "arguments": {ARGUMENTS}}}', call("weather", ARGUMENTS)),
    (
        '{"name": "f", "parameters": {}}; {"name": "weather", "parameters": {"a": 1}}\n',
        [*call("f", "{}"), *call("weather", '{"a": 1}', 1)],
    ),
    ('{"name": "f", "parameters": {}} and more', [*call("f", "{}"), content("and more")]),
    ('Sure. <|python_tag|>{"name": "f", "parameters": {}}', [content("Sure."), *call("f", "{}")]),
    # answers that are JSON but no calls
    ('{"name": "Bob", "age": 5}', [content('{"name": "Bob", "age": 5}')]),
    ('{"age": 5, "list": [1, 2]} ', [content('{"age": 5, "list": [1, 2]} ')]),
    ("{", [content("{")]),
    ("{x", [content("{x")]),
    ("<|python_tag|>print(1)", [content("<|python_tag|>print(1)")]),
    ("<|python_t", [content("<|python_t")]),
    ('not first: {"name": "f", "parameters": {}}', [content('not first: {"name": "f", "parameters": {}}')]),
    ('{"name": "f", "parameters": {"a": ', call("f", '{"a": ')),
]
MISTRAL: list[Case] = [
    *LISTS("[TOOL_CALLS]"),
    ('[TOOL_CALLS] [{"name": "f", "arguments": {}}]', call("f", "{}")),
    ("[TOOL_CALLS] hello", [content("[TOOL_CALLS] hello")]),
    ('[TOOL_CALLS]{"name": "f", "arguments": {}}', call("f", "{}")),
    ("[TOOL_CALLS]f[ARGS]{}", call("f", "{}")),
    (f"Hm. [TOOL_CALLS]f[ARGS]{ARGUMENTS}", [content("Hm."), *call("f", ARGUMENTS)]),
    (
        '[TOOL_CALLS]f[ARGS]{"a": "]{"}[TOOL_CALLS]weather[CALL_ID]x1[ARGS] {} ',
        [*call("f", '{"a": "]{"}'), *call("weather", "{}", 1)],
    ),
    ('[TOOL_CALLS]f{"a": 1}', call("f", '{"a": 1}')),
    ("[TOOL_CALLS]f[ARGS]", [content("[TOOL_CALLS]f[ARGS]")]),
    ("[TOOL_CALLS]", [content("[TOOL_CALLS]")]),
    ("[TOOL_CALLS]two words[ARGS]{}", [content("[TOOL_CALLS]two words[ARGS]{}")]),
    ('[TOOL_CALLS]f[ARGS]{"a": ', call("f", '{"a": ')),
]
DEEPSEEK: list[Case] = [
    ("Hello", [content("Hello")]),
    (
        f"I look.\n\n{BEGIN}{CALL}function{SEP}f\n```json\n{ARGUMENTS}\n```{CALL_END}{END}",
        [content("I look."), *call("f", ARGUMENTS)],
    ),
    (
        f'{BEGIN}{CALL}function{SEP}f\n```json\n{{"a": "`"}}\n```{CALL_END}\n'
        f"{CALL}function{SEP}weather\n```json\n{{}}\n```{CALL_END}{END}",
        [*call("f", '{"a": "`"}'), *call("weather", "{}", 1)],
    ),
    (
        f'{BEGIN}{CALL}f{SEP}{{"a": 1}}{CALL_END}{CALL}weather{SEP}{{}}{CALL_END}{END}',
        [*call("f", '{"a": 1}'), *call("weather", "{}", 1)],
    ),
    (f"{CALL}function{SEP}{{}}{CALL_END}", call("function", "{}")),
    (f"{BEGIN}hello", [content(f"{BEGIN}hello")]),
    (f"{CALL}hello {{", [content(f"{CALL}hello {{")]),
    (f"{CALL}" + "x" * 300 + "{}", [content(f"{CALL}" + "x" * 300 + "{}")]),
]
QWEN3_CODER: list[Case] = [
    ("Hello < <", [content("Hello < <")]),
    (
        "Now:\n" + xml("weather", town="Rome", days="3"),
        [content("Now:"), *call("weather", '{"town": "Rome", "days": 3}')],
    ),
    (xml("f"), call("f", "{}")),
    (xml("weather", town=' "5"\n\n<b> </par ☕\\'), call("weather", '{"town": " \\"5\\"\\n\\n<b> </par ☕\\\\"}')),
    (
        xml("weather", is_dry="True", note="null", tags='["a", 1]', unit="C", code="5"),
        call("weather", '{"is_dry": true, "note": null, "tags": ["a", 1], "unit": "C", "code": 5}'),
    ),
    (
        xml("weather", note="5", days="many", is_dry='"x"', code="NaN"),
        call("weather", '{"note": "5", "days": "many", "is_dry": "x", "code": "NaN"}'),
    ),
    (xml("weather", sky="8", knot="5"), call("weather", '{"sky": "8", "knot": 5}')),
    (xml("f", a="x", b="[1", c="{}"), call("f", '{"a": "x", "b": "[1", "c": {}}')),
    (f"{xml('f')}\n{xml('weather', town='')}", [*call("f", "{}"), *call("weather", '{"town": ""}', 1)]),
    ("<function=f>\n<parameter=a>1</parameter></tool_call> x", [*call("f", '{"a": 1}'), content("x")]),
    (
        "<function=weather><parameter=town>a</parameter></function></tool_call>y",
        [*call("weather", '{"town": "a"}'), content("y")],
    ),
    (
        "<tool_call><function=weather><parameter=town>\na\n<parameter=days>\n3\n</parameter></tool_call>",
        call("weather", '{"town": "a", "days": 3}'),
    ),
    (
        xml("weather", town="use </parameter> </function> here"),
        call("weather", '{"town": "use </parameter> </function> here"}'),
    ),
    ('<tool_call><function="f"><parameter="a">1</parameter></function></tool_call>', call("f", '{"a": 1}')),
    ("<tool_call>\nhello", [content("<tool_call>\nhello")]),
    ("<function=", [content("<function=")]),
    ("<function=a b>x", [content("<function=a b>x")]),
    ("<tool_call>\n<function=weather>\n<parameter=town>\nOsl", call("weather", '{"town": "Osl')),
]
PYTHONIC: list[Case] = [
    ("Hello [f()]", [content("Hello [f()]")]),
    ("[f()]", call("f", "{}")),
    (" \n[f( )]\n", call("f", "{}")),
    (
        "[weather(town='K\\'ö', days=3, tags=[1, (2,), {'a': None}], is_dry=True,)]",
        call("weather", '{"town": "K\'ö", "days": 3, "tags": [1, [2], {"a": null}], "is_dry": true}'),
    ),
    ('[f(a="x, )]"), weather(days=-1.5)] ', [*call("f", '{"a": "x, )]"}'), *call("weather", '{"days": -1.5}', 1)]),
    ('<|python_start|>[f(a=true, b=null, c="\\d")]<|python_end|>', call("f", '{"a": true, "b": null, "c": "\\\\d"}')),
    ("[f()] So.", [*call("f", "{}"), content("So.")]),
    # no calls: a list, a function that is not among the tools, values that are no literals
    ("[1, 2]", [content("[1, 2]")]),
    ("[g(a=1)]", [content("[g(a=1)]")]),
    ("[f(a=g())]", [content("[f(a=g())]")]),
    ("[f(1)]", [content("[f(1)]")]),
    ("[f(a=1]", [content("[f(a=1]")]),
    ("[f(a=1e999)]", [content("[f(a=1e999)]")]),
    ("[f(a=1, b=x)] ", call("f", '{"a": 1, "b": "x"}')),
    ("[f", [content("[f")]),
    ("[f(a='x", [content("[f(a='x")]),
    ("[f(a=1, b=", call("f", '{"a": 1, "b": ')),
    ("[f(a=1, b='x", call("f", '{"a": 1, "b": ')),
]
HARMONY: list[Case] = [
    ("Hello", [content("Hello")]),
    ("<|channel|>final<|message|>Hello \n", [content("Hello \n")]),
    (
        "<|channel|>analysis<|message|>Hm. <|end|><|start|>assistant<|channel|>final<|message|>It rains.<|return|>",
        [reasoning("Hm."), content("It rains.")],
    ),
    (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.weather "
        f"<|constrain|>json<|message|>{ARGUMENTS}<|call|>",
        [reasoning("Hm."), *call("weather", ARGUMENTS)],
    ),
    (
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant to=functions.f<|channel|>commentary json"
        '<|message|>{"a": "<"}<|call|><|start|>assistant<|channel|>commentary to=functions.f<|message|><|call|>',
        [content("I look."), *call("f", '{"a": "<"}'), *call("f", "{}", 1)],
    ),
    (' to=functions.f<|channel|>commentary<|message|>{"a": ', call("f", '{"a": ')),
    ("<|channel|>commentary to=functions.f<|message|>no object<|call|>", [content("no object")]),
    ("<|channel|>final", [content("<|channel|>final")]),
    ("to be or not", [content("to be or not")]),
    ("<|channel|>" + "x" * 300, [content("<|channel|>" + "x" * 300)]),
]
CASES = [
    (name, text, parts)
    for name, cases in {
        "hermes": HERMES,
        "llama3_json": LLAMA3,
        "mistral": MISTRAL,
        "granite": [
            *LISTS("<|tool_call|>"),
            ('<tool_call> [{"name": "f", "arguments": {}}]', call("f", "{}")),
        ],
        "phi4_mini_json": LISTS("functools"),
        "deepseek_v3": DEEPSEEK,
        "qwen3_coder": QWEN3_CODER,
        "llama4_pythonic": PYTHONIC,
        "lfm2": [
            (
                "So.<|tool_call_start|>[f(a=True), f()]<|tool_call_end|>",
                [content("So."), *call("f", '{"a": true}'), *call("f", "{}", 1)],
            ),
        ],
        "openai": HARMONY,
    }.items()
    for text, parts in cases
]


def in_pieces(name: str, pieces: list[str]) -> list[AnswerPart]:
    return read_in_pieces(reader(name), pieces)


def test_all_are_tested() -> None:
    tested = {name for name, _, _ in CASES}
    same = {"mistral_list": "mistral", "deepseek_v31": "deepseek_v3", "qwen3_xml": "qwen3_coder"}
    same["pythonic"] = "llama4_pythonic"
    assert {same.get(name, name) for name in CALL_FORMATS} == tested


@pytest.mark.parametrize(("name", "text", "parts"), CASES)
def test_what_is_found(name: str, text: str, parts: list[AnswerPart]) -> None:
    assert read_whole(reader(name), text) == parts


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text", "parts"), CASES)
def test_the_same_is_found_wherever_the_text_is_cut(name: str, text: str, parts: list[AnswerPart]) -> None:
    assert in_pieces(name, list(text)) == parts
    for first in range(len(text) + 1):
        assert in_pieces(name, [text[:first], text[first:]]) == parts, first
        for second in range(first, len(text) + 1, 1 + len(text) // 10):
            assert in_pieces(name, [text[:first], text[first:second], text[second:]]) == parts, (first, second)


OBJECTS = [
    *('"name"', '"arguments"', '"parameters"', '"f"', '"weather"', "null", '"\\"{"', '{"name": "f"', ', "arguments": '),
    *('{"name": "f", "arguments": {"a": [1]}}', '{"name": "weather", "parameters": "{}"}'),
]
FRAGMENTS = {
    "hermes": ["<tool_call>", "</tool_call>", "<tool", "```json\n", "\n```", *OBJECTS],
    "llama3_json": ["<|python_tag|>", ";", *OBJECTS],
    "mistral": ["[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "[TOOL", "f", '"name"', '"f"', '{"name": "f", "arguments": {}}'],
    "granite": ["<|tool_call|>", "<|tool", '{"name": "f", "arguments": {"a": [1]}}', '"f"', '"name": '],
    "phi4_mini_json": ["functools[", "func", '{"name": "f", "arguments": {"a": [1]}}', '"f"', '"name": '],
    "deepseek_v3": [BEGIN, END, CALL, SEP, CALL_END, "```json\n", "\n```", "function", "f", "<｜tool▁call"],
    "qwen3_coder": [
        *("<tool_call>", "</tool_call>", "<function=", "</function>", "<parameter=", "</parameter>", "weather"),
        *("<function=f>", "<parameter=town>", "<parameter=days>", "5", "</", ">", "<"),
    ],
    "llama4_pythonic": ["f(", "weather(", "a=", "town=", ")", "'", '"', "\\", "(", "1", "<|python_start|>", "[f("],
    "openai": [
        *("<|channel|>", "<|message|>", "<|end|>", "<|start|>", "<|call|>", "analysis", "final", "assistant"),
        *("commentary to=functions.f", "to=", "<|", '{"a": 1}'),
    ],
}


@pytest.mark.slow
@pytest.mark.parametrize("name", FRAGMENTS)
def test_any_text_is_read_alike_in_any_pieces(name: str) -> None:
    rng = random.Random(name)
    fragments = [*FRAGMENTS[name], " ", "\n", ",", "{", "}", "[", "]", ":", "Hello", '"', "☕"]
    for _ in range(800):
        text = "".join(rng.choice(fragments) for _ in range(rng.randint(1, 14)))
        expected = read_whole(reader(name), text)
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randint(1, 8)))
        parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert in_pieces(name, parts) == expected, parts
        assert in_pieces(name, list(text)) == expected, text
        numbers = [part.number for part in expected if part.kind == "call"]
        assert numbers == list(range(len(numbers)))


def test_what_is_certain_comes_at_once() -> None:
    one = reader("hermes")
    out = [
        one.push(part) for part in ("Hi", " you", '<tool_call>{"name": "f"', ', "arguments": {"a": ', "1", ', "b": 2}')
    ]
    assert out == [
        [content("Hi")],
        [content(" you")],
        [],  # the name alone: what stands where the arguments should may be no JSON
        [AnswerPart("call", "f"), AnswerPart("arguments", '{"a": ')],
        [AnswerPart("arguments", "1")],
        [AnswerPart("arguments", ', "b": 2}')],
    ]


def test_bare_text_comes_as_it_is_written() -> None:
    one = reader("qwen3_coder")
    texts = ("<function=weather><parameter=town>\nA", "b", "\n", "c\n</para", "meter></function>")
    assert [[part.text for part in one.push(text)] for text in texts] == [
        ["weather", '{"town": "A'],
        ["b"],
        [],
        ["\\nc"],
        ['"}'],
    ]


@pytest.mark.slow
def test_long_arguments_take_time_in_proportion() -> None:
    """Look at every character a few times only, however small the parts."""
    body = json.dumps({"a": ["x" * 100] * 300})
    for name, text in {
        "hermes": f'<tool_call>{{"name": "f", "arguments": {body}',
        "mistral": f"[TOOL_CALLS]f[ARGS]{body}",
        "llama4_pythonic": f"[f(a={body})]",
        "openai": f"<|channel|>commentary to=functions.f<|message|>{body}<|call|>",
    }.items():
        parts = in_pieces(name, list(text))
        assert [part.kind for part in parts] == ["call", "arguments"], name
        assert body in parts[1].text


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ('<tool_call>\n{"name": <name>, "arguments": <object>}\n</tool_call>', "hermes"),
        ("<tool_call>\n<function=name>\n<parameter=key>\nvalue", "qwen3_coder"),
        ("respond only with <|tool_call|> followed by a JSON list of tools used", "granite"),
        ('functools[{"name": [name], "arguments": [arguments]}]', "phi4_mini_json"),
        ("[func_name1(params_name1=params_value1), func_name2(params)]", "llama4_pythonic"),
        ("<|im_start|>system\nList of tools: [{}]<|im_end|>", "lfm2"),
        ("<|im_start|>system\nList of tools: <|tool_list_start|>[{}]<|tool_list_end|>", "lfm2"),
        ("You have a List of tools: [{}]", None),
        ("<tool_call>name\n<arg_key>key</arg_key>\n<arg_value>value</arg_value>\n</tool_call>", None),
        ("Write calls between <tool_call> and </tool_call>.", None),
    ],
)
def test_a_whole_example_declares_a_format_and_a_mark_does_not(prompt: str, name: str | None) -> None:
    assert declared_format(prompt) == name


def fence(text: str, language: str = "json") -> str:
    return f"```{language}\n{text}\n```"


WHOLE = '{"name": "f", "arguments": {"a": "b ``` c"}}'
NO_CALLS = (
    fence(WHOLE.replace('"f"', '"g"')),
    fence(WHOLE.replace("}}", '}, "why": 1}')),
    fence('{"name": "f"}'),
    fence('{"name": "f", "arguments": "{}"}'),
    fence('{"name": "f", "arguments": null}'),
    fence(f"{WHOLE} and more"),
    fence(WHOLE).removesuffix("```"),
    fence(WHOLE, "python"),
    fence(WHOLE, ""),
    fence('{"a": 1}'),
    fence(f"[{WHOLE}, 1]"),
    fence(f"{WHOLE}\n{{}}"),
    fence("[]"),
    fence(f"[{WHOLE}"),
    WHOLE,
)
PAIR = [*call("f", '{"a": "b ``` c"}'), *call("f", '{"a": "b ``` c"}', 1)]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (fence(WHOLE), call("f", '{"a": "b ``` c"}')),
        (f"So:\n{fence(WHOLE)}\nDone.", [content("So:"), *call("f", '{"a": "b ``` c"}'), content("\nDone.")]),
        (f"{fence(WHOLE)}\n{fence(WHOLE)}", PAIR),
        (fence(f"{WHOLE}\n{WHOLE}"), PAIR),
        (f"{fence(f'[{WHOLE}, {WHOLE}]')}\nDone.", [*PAIR, content("Done.")]),
        (f"```json\n{WHOLE}```", call("f", '{"a": "b ``` c"}')),
        *((text, [content(text)]) for text in NO_CALLS),
    ],
)
def test_a_fence_is_a_call_if_it_holds_a_tools_name_and_arguments_alone(text: str, parts: list[AnswerPart]) -> None:
    def new(tools: list[Any]) -> Reader:
        return AnswerParser(call_syntax("hermes"), None, tools, drops_cut=True)

    assert read_whole(new(TOOLS), text) == parts
    assert read_in_pieces(new(TOOLS), text) == parts
    assert read_whole(new([]), text) == [content(text)]


def test_a_fence_whose_arguments_do_not_fit_is_text() -> None:
    text = fence(f'{WHOLE}\n{{"name": "f", "arguments": {{"a": 2}}}}')

    def fits(name: str, arguments: str) -> bool:
        return (name, arguments) != ("f", '{"a": 2}')

    for read in (read_whole, read_in_pieces):
        assert read(AnswerParser(CALL_FORMATS["hermes"], None, TOOLS, fits=fits), text) == [content(text)]
        assert len(read(AnswerParser(CALL_FORMATS["hermes"], None, TOOLS), text)) == 4


def test_white_space_without_end_costs_each_piece_alike() -> None:
    """Read in 0.02 s of processor time; 6.2 s where each space reads all before it again."""
    reader, text, parts = CallReader(0), '{"name": "f", ', list[AnswerPart]()
    start = time.process_time()
    for piece in [*" " * 32_000, '"arguments"', ": {}", "}"]:
        new, text = reader.read(text + piece)
        parts += new
    assert time.process_time() - start < 2
    assert ("".join(part.text for part in parts), reader.is_over) == ("f{}", True)
