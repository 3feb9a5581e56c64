"""Arrivals, lengths and prompts: seeded, and true to the options."""

import itertools
import math
import random
import statistics

import pytest

from splitfuse.client.bench.traces import TraceRow
from splitfuse.client.bench.workload import PromptMaker, arrivals, normal_rows, random_rows


def gaps(burstiness: float, seed: int = 0) -> list[float]:
    """Return the gaps of a long run at 10 requests per second."""
    times = arrivals(4000, rate=10.0, burstiness=burstiness, source=random.Random(seed))
    return [b - a for a, b in itertools.pairwise([0.0, *times])]


def test_an_infinite_rate_sends_all_at_once() -> None:
    assert arrivals(3, rate=math.inf, burstiness=1.0, source=random.Random(0)) == [0.0, 0.0, 0.0]
    assert arrivals(0, rate=2.0, burstiness=1.0, source=random.Random(0)) == []


def test_a_rate_takes_the_same_time_whatever_the_seed() -> None:
    for seed in range(3):
        times = arrivals(50, rate=10.0, burstiness=1.0, source=random.Random(seed))
        assert times == sorted(times)
        assert times[-1] == pytest.approx(5.0)
    assert gaps(1.0) == gaps(1.0)
    assert gaps(1.0) != gaps(1.0, seed=1)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_the_gamma_distribution_does(burstiness: float) -> None:
    drawn = gaps(burstiness)
    assert statistics.fmean(drawn) == pytest.approx(0.1)
    assert statistics.pstdev(drawn) / 0.1 == pytest.approx(burstiness**-0.5, rel=0.1)


def test_an_infinite_burstiness_is_a_metronome() -> None:
    assert gaps(math.inf) == pytest.approx([0.1] * 4000)


def test_random_lengths_stay_in_their_range() -> None:
    rows = random_rows(500, input_len=100, output_len=10, range_ratio=0.5, source=random.Random(0))
    assert {row.prompt_len for row in rows} <= set(range(50, 151))
    assert {row.output_len for row in rows} == set(range(5, 16))
    same = random_rows(3, input_len=100, output_len=10, range_ratio=0.0, source=random.Random(0))
    assert same == [TraceRow(100, 10)] * 3


def test_normal_lengths() -> None:
    rows = normal_rows(2000, input_len=325, output_len=8, seed=0)
    mean = sum(row.prompt_len for row in rows) / 2000
    spread = (sum((row.prompt_len - mean) ** 2 for row in rows) / 2000) ** 0.5
    assert (mean, spread) == pytest.approx((325, 97.5), rel=0.05)
    assert min(row.output_len for row in rows) >= 1


def test_prompts_are_seeded_ids_from_100_up() -> None:
    maker = PromptMaker(vocab_size=110)
    prompt = maker.prompt(TraceRow(200, 1), random.Random(3))
    assert set(prompt) == set(range(100, 110))
    assert len(prompt) == 200
    assert prompt == maker.prompt(TraceRow(200, 1), random.Random(3))
    assert prompt != maker.prompt(TraceRow(200, 1), random.Random(4))


def test_blocks_of_one_hash_are_the_same_tokens() -> None:
    maker = PromptMaker(vocab_size=1000, seed=5)
    source = random.Random(0)
    one = list(maker.prompt(TraceRow(20, 1, hash_ids=(4, 7), block_len=12), source))
    two = list(maker.prompt(TraceRow(24, 1, hash_ids=(4, 9), block_len=12), source))
    three = list(maker.prompt(TraceRow(40, 1, hash_ids=(4, 7), block_len=12), source))
    assert one[:12] == two[:12]
    assert one == three[:20]
    assert [len(one), len(two), len(three)] == [20, 24, 40]
    assert two[12:] != three[12:24]
    other_seed = PromptMaker(vocab_size=1000, seed=6)
    assert list(other_seed.prompt(TraceRow(12, 1, hash_ids=(4,), block_len=12), source)) != one[:12]


@pytest.mark.parametrize("vocab_size", [None, 65_636])
def test_equal_hash_ids_are_equal_tokens_and_nothing_else_is(vocab_size: int | None) -> None:
    rows = [TraceRow(125, 6, hash_ids=(0, 1), block_len=64), TraceRow(162, 1, hash_ids=(0, 1, 2), block_len=64)]
    maker, source = PromptMaker(vocab_size), random.Random(0)
    first, second = (list(maker.prompt(row, source)) for row in rows)
    assert [len(first), len(second)] == [125, 162]
    assert first == second[:125]
    assert first == list(maker.prompt(rows[0], random.Random(9)))
    assert first != list(PromptMaker(vocab_size, seed=1).prompt(rows[0], source))
    own = TraceRow(50, 1)
    assert maker.prompt(own, source) != maker.prompt(own, source)
    assert all(-(2**31) <= token < 2**31 for token in second)


def test_a_prompt_longer_than_its_blocks_goes_on_with_tokens_of_its_own() -> None:
    row = TraceRow(100, 1, hash_ids=(7,), block_len=64)
    source = random.Random(0)
    one, other = (list(PromptMaker(None).prompt(row, source)) for _ in range(2))
    assert len(one) == len(other) == 100
    assert one[:64] == other[:64]
    assert one[64:] != other[64:]


def test_text_has_a_word_for_a_token() -> None:
    text = PromptMaker(vocab_size=1000, as_text=True).prompt(TraceRow(30, 1), random.Random(0))
    assert isinstance(text, str)
    assert len(text.split()) == 30
