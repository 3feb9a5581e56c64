"""Answers of the kinds that the tests of llama.cpp, smg and vLLM read, in own words: calls, content and reasoning.

test_answers_of_other_suites.json has the forms of calls and reasoning, as derived from templates or by their names,
the tools, and the answers, each with the suite that has one like it. server/docs/internals/testing.md counts them.
"""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from answer_pieces import read_in_pieces

from splitfuse.engine.language.chat.answer_parser import AnswerParser
from splitfuse.engine.language.chat.answer_parts import AnswerPart, read_whole
from splitfuse.engine.language.chat.call_formats import call_syntax
from splitfuse.engine.language.chat.reasoning_parser import reasoning_format

CASES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
NUM_ANSWERS = {"test-chat": 287, "smg": 155, "vllm tools": 33, "vllm reasoning": 74}


def new_parser(form: dict[str, Any], tools: list[int], *, is_open: int) -> AnswerParser:
    calls, reasoning = form["calls"], form["reasoning"]
    return AnswerParser(
        None if calls is None else call_syntax(calls),
        None if reasoning is None else reasoning_format(reasoning),
        [CASES["tools"][number] for number in tools],
        is_open=bool(is_open),
        drops_cut=True,
    )


def summary(parts: list[AnswerPart]) -> tuple[str, str, list[list[Any]]]:
    texts = {kind: "".join(part.text for part in parts if part.kind == kind) for kind in ("content", "reasoning")}
    arguments = {part.number: part.text for part in parts if part.kind == "arguments"}
    calls = [[part.text, _value(arguments.get(part.number, "{}"))] for part in parts if part.kind == "call"]
    return texts["content"].strip(), texts["reasoning"].strip(), calls


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:  # an answer that ends within a call
        return text


@pytest.mark.parametrize("name", CASES["forms"])
def test_each_answer_comes_apart_whole_and_letter_by_letter(name: str) -> None:
    for _, form, is_open, tools, text, content, reasoning, calls in CASES["answers"]:
        if form == name:
            for read in (read_whole, read_in_pieces):
                parts = read(new_parser(CASES["forms"][name], tools, is_open=is_open), text)
                assert summary(parts) == (content, reasoning, calls), text


def test_as_many_answers_stand_as_the_documents_say() -> None:
    assert Counter(answer[0] for answer in CASES["answers"]) == NUM_ANSWERS
