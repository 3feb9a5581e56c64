"""Reasoning and calls in answers: the parts found, which are equal wherever the text is cut."""

import random
from collections.abc import Callable

import pytest
from answer_pieces import call, content, read_in_pieces, reasoning

from splitfuse.engine.language.chat.answer_parser import AnswerParser
from splitfuse.engine.language.chat.answer_parts import AnswerPart, Reader, read_whole
from splitfuse.engine.language.chat.call_formats import CALL_FORMATS
from splitfuse.engine.language.chat.reasoning_parser import REASONING_FORMATS, ReasoningParser

THINK = REASONING_FORMATS["think"]


MAKE: dict[str, Callable[[], Reader]] = {
    "thinking": lambda: ReasoningParser(THINK),
    "open": lambda: ReasoningParser(THINK, is_open=True),
    "both": lambda: AnswerParser(CALL_FORMATS["hermes"], THINK),
    "none": lambda: AnswerParser(None, None),
}


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
    for name, cases in {"thinking": THINKING, "open": OPEN, "both": BOTH}.items()
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
    *("<tool_call>", "</tool_call>", "<think>", "</think>", " ", "\n", "Hello", "<", '"', "<tool", "</thi"),
    *('{"name": "f", "arguments": {"a": [1]}}', '{"name": "f"', ', "arguments": '),
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


def test_thinking_is_known_while_it_lasts() -> None:
    reader = AnswerParser(None, THINK)
    states = []
    for part in ("<think>", "a", "b</thi", "nk>", "c"):
        reader.push(part)
        states.append(reader.is_thinking)
    assert states == [True, True, True, False, False]
    assert AnswerParser(None, THINK, is_open=True).is_thinking
