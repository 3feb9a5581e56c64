"""Arrivals, lengths, traces and prompts: seeded, and true to what was asked."""

import itertools
import math
import random
import statistics
from pathlib import Path

import pytest

from splitfuse.client.bench.arrivals import arrivals
from splitfuse.client.bench.traces import TraceError, TraceRow, read_trace, scaled
from splitfuse.client.bench.workload import PromptMaker, random_rows

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.4799600,3180,8
"""
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n1.5,100,20\n3.5,50,1\n"
LENGTHS = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n3772,54,3826,69.8\n"
MOONCAKE = """{"timestamp": 1000, "input_length": 700, "output_length": 5, "hash_ids": [0, 1]}
{"timestamp": 4000, "input_length": 1024, "output_length": 6, "hash_ids": [0, 2]}

"""


def gaps(burstiness: float, seed: int = 0) -> list[float]:
    """The gaps of a long run at 10 requests per second."""
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


def saved(tmp_path: Path, name: str, text: str) -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_each_kind_of_trace_is_read(tmp_path: Path) -> None:
    assert read_trace(saved(tmp_path, "azure.csv", AZURE)) == [TraceRow(4808, 10, 0.0), TraceRow(3180, 8, 0.5)]
    assert read_trace(saved(tmp_path, "vidur.csv", VIDUR)) == [TraceRow(100, 20, 0.0), TraceRow(50, 1, 2.0)]
    assert read_trace(saved(tmp_path, "lengths.csv", LENGTHS)) == [TraceRow(3772, 54)]
    assert read_trace(saved(tmp_path, "mooncake.jsonl", MOONCAKE)) == [
        TraceRow(700, 5, 0.0, (0, 1)),
        TraceRow(1024, 6, 3.0, (0, 2)),
    ]
    assert len(read_trace(tmp_path / "azure.csv", limit=1)) == 1


@pytest.mark.parametrize(
    ("name", "text", "complaint"),
    [
        ("a.csv", "", "holds no requests"),
        ("a.csv", "x,y\n1,2\n", "request 1: no known columns"),
        ("a.csv", VIDUR + "1,many,2\n", "request 3: .*many"),
        ("a.csv", VIDUR + "nan,1,2\n", "request 3: .*out of range"),
        ("a.csv", VIDUR + "1\n", "request 3"),
        ("a.jsonl", MOONCAKE + "{", "line 4 is not JSON"),
        ("a.jsonl", "[]", "request 1: no known columns"),
        ("a.csv", "\ud800", "a.csv"),
    ],
)
def test_a_trace_that_cannot_be_read_names_the_place(tmp_path: Path, name: str, text: str, complaint: str) -> None:
    path = tmp_path / name
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(TraceError, match=complaint):
        read_trace(path)


def test_a_missing_trace_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"none\.csv"):
        read_trace(tmp_path / "none.csv")


@pytest.mark.parametrize("scale", [8.0, 0.125])
def test_scale_shrinks_lengths_and_stretch_moves_arrivals(scale: float) -> None:
    row = scaled(TraceRow(4808, 10, 3.0, (7,)), scale=scale, stretch=2.0)
    assert row == TraceRow(601, 1, 6.0, (7,), block_len=64)
    assert scaled(TraceRow(1, 1), scale=scale, stretch=2.0) == TraceRow(1, 1, block_len=64)


def test_random_lengths_stay_in_their_range() -> None:
    rows = random_rows(500, input_len=100, output_len=10, range_ratio=0.5, source=random.Random(0))
    assert {row.prompt_len for row in rows} <= set(range(50, 151))
    assert {row.output_len for row in rows} == set(range(5, 16))
    same = random_rows(3, input_len=100, output_len=10, range_ratio=0.0, source=random.Random(0))
    assert same == [TraceRow(100, 10)] * 3


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


def test_text_has_a_word_for_a_token() -> None:
    text = PromptMaker(vocab_size=1000, as_text=True).prompt(TraceRow(30, 1), random.Random(0))
    assert isinstance(text, str)
    assert len(text.split()) == 30
