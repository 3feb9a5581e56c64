"""Reasoning and calls in answers: the parts found, which are equal wherever the text is cut."""

import json
import random
from collections.abc import Callable

import pytest
from answer_pieces import call, content, read_in_pieces, reasoning

from splitfuse.engine.language.chat.answer_parser import AnswerParser
from splitfuse.engine.language.chat.answer_parts import AnswerPart, Reader, read_whole
from splitfuse.engine.language.chat.call_formats import CALL_FORMATS
from splitfuse.engine.language.chat.call_reader import CallsReader
from splitfuse.engine.language.chat.reasoning_parser import REASONING_FORMATS, ReasoningParser

THINK = REASONING_FORMATS["think"]
ARGUMENTS = '{"town": "K\\u00f6ln \\" } ]", "days": [1, {"a": null}], "x": -1.5e3}'


def calls(name: str) -> CallsReader:
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "weather")]
    return CallsReader(CALL_FORMATS[name], tools)


MAKE: dict[str, Callable[[], Reader]] = {
    "hermes": lambda: calls("hermes"),
    "llama3": lambda: calls("llama3_json"),
    "thinking": lambda: ReasoningParser(THINK),
    "open": lambda: ReasoningParser(THINK, is_open=True),
    "both": lambda: AnswerParser(CALL_FORMATS["hermes"], THINK),
    "none": lambda: AnswerParser(None, None),
}


HERMES: list[tuple[str, list[AnswerPart]]] = [
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
LLAMA3: list[tuple[str, list[AnswerPart]]] = [
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
THINKING: list[tuple[str, list[AnswerPart]]] = [
    ("", []),
    ("\n Hello ", [content("\n Hello ")]),
    ("<think>\nHm.\n\nYes. \n</think>\n\nHello \n", [reasoning("Hm.\n\nYes."), content("Hello \n")]),
    (" \n<think>a</think>b", [reasoning("a"), content("b")]),
    ("<think></think>\n\nHello", [content("Hello")]),
    ("<think>cut off </thi", [reasoning("cut off </thi")]),
    ("<think>a</think>", [reasoning("a")]),
    ("<thin air", [content("<thin air")]),
    ("<thin", [content("<thin")]),
    ("Hello <think>no</think>", [content("Hello <think>no</think>")]),
    ("<think>a</think>b<think>c</think>", [reasoning("a"), content("b<think>c</think>")]),
]
OPEN: list[tuple[str, list[AnswerPart]]] = [
    ("", []),
    ("Hm.\n</think>\n\nHello", [reasoning("Hm."), content("Hello")]),
    ("<think>\nonce more</think>x", [reasoning("once more"), content("x")]),
    ("never closed ", [reasoning("never closed")]),
    ("</think>Hello", [content("Hello")]),
]
BOTH: list[tuple[str, list[AnswerPart]]] = [
    (
        '<think>I need <tool_call> for this.</think>\n\n<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>',
        [reasoning("I need <tool_call> for this."), *call("f", "{}")],
    ),
    ("<think>a</think>b <tool_", [reasoning("a"), content("b <tool_")]),
]
CASES = [
    (name, text, parts)
    for name, cases in {"hermes": HERMES, "llama3": LLAMA3, "thinking": THINKING, "open": OPEN, "both": BOTH}.items()
    for text, parts in cases
]


def in_pieces(name: str, pieces: list[str]) -> list[AnswerPart]:
    return read_in_pieces(MAKE[name](), pieces)


@pytest.mark.parametrize(("name", "text", "parts"), CASES)
def test_what_is_found(name: str, text: str, parts: list[AnswerPart]) -> None:
    assert read_whole(MAKE[name](), text) == parts


@pytest.mark.slow
@pytest.mark.parametrize(("name", "text", "parts"), CASES)
def test_the_same_is_found_wherever_the_text_is_cut(name: str, text: str, parts: list[AnswerPart]) -> None:
    assert in_pieces(name, list(text)) == parts
    for first in range(len(text) + 1):
        assert in_pieces(name, [text[:first], text[first:]]) == parts, first
        for second in range(first, len(text) + 1, 3):
            assert in_pieces(name, [text[:first], text[first:second], text[second:]]) == parts, (first, second)


FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|python_tag|>", " ", "\n", ";", ",", "{", "}", "[", "]"),
    *('"name"', '"arguments"', '"parameters"', ":", '"f"', '"weather"', "null", "5", '"\\"{"', "Hello", "<", '"'),
    *('{"name": "f", "arguments": {"a": [1]}}', '{"name": "weather", "parameters": "{}"}', '{"name": "f"'),
    *(', "arguments": ', "<tool"),
]


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_any_text_is_read_alike_in_any_pieces(name: str) -> None:
    rng = random.Random(name)
    for _ in range(3000):
        text = "".join(rng.choice(FRAGMENTS) for _ in range(rng.randint(1, 14)))
        expected = read_whole(MAKE[name](), text)
        cuts = sorted(rng.randrange(len(text) + 1) for _ in range(rng.randint(1, 8)))
        parts = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
        assert in_pieces(name, parts) == expected, parts
        assert in_pieces(name, list(text)) == expected, text
        numbers = [part.number for part in expected if part.kind == "call"]
        assert numbers == list(range(len(numbers)))
        if name == "none":
            assert expected == [content(text)]


def test_what_is_certain_comes_at_once() -> None:
    reader = calls("hermes")
    out = [
        reader.push(part)
        for part in ("Hi", " you", '<tool_call>{"name": "f"', ', "arguments": {"a": ', "1", ', "b": 2}')
    ]
    assert out == [
        [content("Hi")],
        [content(" you")],
        [],  # the name alone: what stands where the arguments should may be no JSON
        [AnswerPart("call", "f"), AnswerPart("arguments", '{"a": ')],
        [AnswerPart("arguments", "1")],
        [AnswerPart("arguments", ', "b": 2}')],
    ]


def test_thinking_is_known_while_it_lasts() -> None:
    reader = AnswerParser(None, THINK)
    states = []
    for part in ("<think>", "a", "b</thi", "nk>", "c"):
        reader.push(part)
        states.append(reader.is_thinking)
    assert states == [True, True, True, False, False]
    assert AnswerParser(None, THINK, is_open=True).is_thinking


def test_long_arguments_take_time_in_proportion() -> None:
    """Look at every character once, however small the parts."""
    reader = calls("hermes")
    body = json.dumps({"a": ["x" * 100] * 500})
    parts = [part for char in f'<tool_call>{{"name": "f", "arguments": {body}' for part in reader.push(char)]
    assert "".join(part.text for part in parts if part.kind == "arguments") == body
