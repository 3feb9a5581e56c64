"""Prompt lookup, compared with an exhaustive search."""

import random

import pytest

from splitfuse.engine.core.request import Request
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.extras.spec_decode.ngram import NgramDrafter, NgramIndex


def slow_find(tokens: list[int], min_n: int, max_n: int) -> tuple[int, int]:
    best, best_n = 0, 0
    for position in range(len(tokens) - 1, min_n - 1, -1):
        n = 0
        while n < max_n and n < position and tokens[position - n - 1] == tokens[len(tokens) - n - 1]:
            n += 1
        if n >= min_n and n > best_n:
            best, best_n = position, n
    return best, best_n


@pytest.mark.parametrize("seed", range(60))
def test_finds_the_longest_and_latest_match(seed: int) -> None:
    rng = random.Random(seed)
    min_n = rng.randint(1, 3)
    max_n = rng.randint(min_n, 6)
    tokens: list[int] = []
    index = NgramIndex(tokens, min_n=min_n, max_n=max_n)
    for _ in range(40):
        # Up to 16 candidates are looked at; a vocabulary of 12 keeps chains about that short.
        tokens += [rng.randrange(12) for _ in range(rng.randint(1, 3))]
        index.extend()
        position, n = index.find()
        expected_position, expected_n = slow_find(tokens, min_n, max_n)
        if min_n > 1:
            assert (position, n) == (expected_position, expected_n)
        assert n <= expected_n
        assert (n > 0) == (expected_n > 0)


def test_drafts_what_followed() -> None:
    tokens = [1, 2, 3, 4, 5, 6, 9, 2, 3]
    index = NgramIndex(tokens, min_n=2, max_n=4)
    index.extend()
    assert index.propose(3) == [4, 5, 6]
    assert index.propose(1) == [4]
    tokens.append(7)
    index.extend()
    assert index.propose(3) == []


def test_goes_on_with_what_it_repeats() -> None:
    tokens = [8, 1, 2, 3, 1, 2, 3, 1]
    index = NgramIndex(tokens, min_n=2, max_n=3)
    index.extend()
    assert index.propose(8) == [2, 3, 1, 2, 3, 1, 2, 3]


def test_prefers_the_longer_match_to_the_later_one() -> None:
    tokens = [1, 2, 3, 7, 0, 2, 3, 8, 1, 2, 3]
    index = NgramIndex(tokens, min_n=1, max_n=3)
    index.extend()
    assert index.propose(1) == [7]


def test_memory_is_bounded_and_old_positions_are_forgotten() -> None:
    rng = random.Random(0)
    tokens = [5, 5, 6, 7]
    index = NgramIndex(tokens, min_n=2, max_n=3, window=100)
    for _ in range(60):
        tokens += [rng.randrange(10, 1000) for _ in range(17)]
        while not index.extend(limit=5):
            pass
        assert len(index._previous) <= 200 + 5
        assert len(index._last) <= 200 + 5
    tokens += [5, 5]
    index.extend()
    assert index.find() == (0, 0), "its position is long out of the window"
    recent = tokens[-60:-55]
    tokens += recent[:3]
    index.extend()
    assert index.propose(2) == recent[3:]


def test_a_long_prompt_is_indexed_over_several_calls() -> None:
    request = Request(
        request_id="r", prompt_token_ids=[*range(20_000), 3, 4], params=SamplingParams(), max_num_tokens=30_000, seed=0
    )
    drafter = NgramDrafter(min_n=2, max_n=4)
    assert drafter.draft({request: 2}) == {}
    assert drafter.draft({request: 2}) == {request: [5, 6]}
    assert drafter.draft({request: 0}) == {}
    drafter.forget(request)
    drafter.forget(request)
    assert drafter._indices == {}
