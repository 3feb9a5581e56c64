"""Forced completion: a few tokens complete any output that a grammar allows."""

import json
import random

import jsonschema
import pytest
from grammars import compiled
from random_schemas import random_schema

from splitfuse.engine.language.structured_output.compiler import GrammarCompiler
from splitfuse.engine.language.structured_output.forced_completion import ForcedCompletion
from splitfuse.engine.language.text.tokenizer import Tokenizer


def random_output(matcher: object, rng: random.Random, count: int) -> list[int]:
    """Return up to `count` random tokens that the grammar allows; the matcher has consumed them."""
    output: list[int] = []
    while len(output) < count and not matcher.is_stopped():  # type: ignore[attr-defined]
        mask = matcher.compute_bitmask()  # type: ignore[attr-defined]
        choices = [8 * at + bit for at, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]
        token_id = rng.choice([choice for choice in choices if choice] or [0])
        matcher.consume_token(token_id)  # type: ignore[attr-defined]
        output.append(token_id)
    return output


@pytest.mark.parametrize("bounded", [True, False])
def test_a_completion_is_found_anywhere_in_random_json(
    compiler: GrammarCompiler, tokenizer: Tokenizer, bounded: bool
) -> None:
    rng = random.Random(bounded)
    num_found = num_tries = 0
    for _ in range(150):
        schema = random_schema(rng, bounded=bounded)
        grammar = compiled(compiler, json=schema)
        matcher = grammar.matcher.deep_copy()
        output = random_output(matcher, rng, rng.randint(0, 30))
        before = matcher.compute_bitmask()
        completion = grammar.finder.find(matcher, output, max_tokens=256)
        assert matcher.compute_bitmask() == before, "looking changes nothing"
        num_tries += 1
        if completion is not None and len(completion) <= 256:
            num_found += 1
            jsonschema.validate(json.loads(tokenizer.decode([t for t in output + completion if t])), schema)
    assert num_found > 0.98 * num_tries


def test_the_remainder_of_a_completion_serves_after_its_first_token(compiler: GrammarCompiler) -> None:
    grammar = compiled(compiler, json={"type": "array", "items": {"type": "string"}, "minItems": 2})
    matcher = grammar.matcher.deep_copy()
    assert grammar.finder.remainder(matcher, []) is None
    completion = grammar.finder.find(matcher, [], max_tokens=100)
    assert completion
    matcher.consume_token(completion[0])
    assert grammar.finder.remainder(matcher, completion) == completion[1:]
    assert not matcher.is_error()


def test_it_starts_when_a_token_would_leave_no_room_and_not_before(compiler: GrammarCompiler) -> None:
    """Sample digits forever; the last token must close the array."""
    grammar = compiled(compiler, json={"type": "array", "items": {"type": "integer"}}).begin(max_tokens=40)
    grammar.follow([], num_prompt_tokens=0)
    opening, digit = grammar.matcher.compute_ff_tokens()[0], 18 + 5
    token_ids = [grammar.take(opening)]
    for _ in range(39):
        token_ids.append(grammar.take(digit))
    assert token_ids[1:-1] == [digit] * 38
    assert grammar.finish_reason == "length"
    assert grammar.is_accepting


def test_the_same_tokens_give_the_same_decisions_however_often_they_are_tried(compiler: GrammarCompiler) -> None:
    shared = compiled(compiler, json={"type": "array", "items": {"type": "array", "items": {"type": "string"}}})
    many = (random_output(shared.matcher.deep_copy(), random.Random(seed), 60) for seed in range(100))
    wanted = next(output for output in many if len(output) == 60)

    def run(num_tries: int) -> list[int]:
        grammar = shared.begin(max_tokens=60)
        output: list[int] = []
        while len(output) < 60 and not grammar._completion.is_done(len(output)):
            for _ in range(num_tries):
                grammar.follow(output, num_prompt_tokens=0)
                token_id = grammar.take(wanted[len(output)])
            output.append(token_id)
        return output

    assert run(1) == run(3)


def test_before_its_start_it_forces_nothing(compiler: GrammarCompiler) -> None:
    completion = ForcedCompletion(compiled(compiler, regex="a").finder)
    assert completion.token_or(7, num_tokens=0) == 7
    assert not completion.is_done(0)
    assert not completion.is_due(10_000), "most outputs end long before"


def test_cut_anywhere_a_new_grammar_goes_on_as_the_old_one(compiler: GrammarCompiler) -> None:
    """Resume from the tokens and the start of the completion; without the start some outputs would end differently."""
    shared = compiled(compiler, json={"type": "array", "items": {"type": "array", "items": {"type": "string"}}})
    differences = []
    for seed in range(8):
        wanted = random_output(shared.matcher.deep_copy(), random.Random(seed), 40)

        def go_on(known: list[int], wanted: list[int], start: int | None) -> tuple[list[int], int | None]:
            grammar = shared.begin(max_tokens=40, forced_from=start)
            output = list(known)
            while len(output) < 40:
                grammar.follow(output, num_prompt_tokens=0)
                if grammar.finish_reason:
                    break
                output.append(grammar.take(wanted[len(output)]) if len(output) < len(wanted) else 0)
            return output, grammar.forced_from

        if len(wanted) < 40:
            continue
        whole, start = go_on([], wanted, None)
        for count in range(len(whole)):
            has_begun = start is not None and start < count
            assert go_on(whole[:count], wanted, start if has_begun else None) == (whole, start)
            differences.append(go_on(whole[:count], wanted, None)[0] != whole)
    assert any(differences), "the start decides something"
