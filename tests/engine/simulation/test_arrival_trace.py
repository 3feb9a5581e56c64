"""Trace files: all the kinds there are, made by hand, and what is wrong with a bad one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.simulation.arrival_trace import (
    TraceRequest,
    normal_lengths,
    poisson_arrivals,
    prompt_token_ids,
    read_trace,
)

Write = Callable[[str, str], Path]

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.9799600,3180,8
2023-11-16 18:18:03.9799600,110,27
"""
MOONCAKE = """{"timestamp": 500, "input_length": 1000, "output_length": 50, "hash_ids": [0, 1]}
{"timestamp": 1500, "input_length": 1300, "output_length": 4, "hash_ids": [0, 1, 2]}

{"timestamp": 1500, "input_length": 3, "output_length": 4, "hash_ids": [3]}
"""
LENGTHS = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n74,918,992,0.08\n290,905,1195,0.3\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def test_azure(write: Write) -> None:
    requests = read_trace(write("code.csv", AZURE))
    assert [(r.prompt_len, r.output_len) for r in requests] == [(4808, 10), (3180, 8), (110, 27)]
    assert [r.arrival_s for r in requests] == pytest.approx([0.0, 1.0, 60.0])


def test_mooncake(write: Write) -> None:
    requests = read_trace(write("conversation.jsonl", MOONCAKE))
    assert [r.arrival_s for r in requests] == [0.0, 1.0, 1.0]
    assert [r.hash_ids for r in requests] == [(0, 1), (0, 1, 2), (3,)]


def test_lengths_alone_and_vidurs_times(write: Write) -> None:
    assert [r.arrival_s for r in read_trace(write("sharegpt.csv", LENGTHS))] == [0.0, 0.0]
    with_times = "arrived_at,num_prefill_tokens,num_decode_tokens\n2.5,10,20\n3.5,30,40\n"
    assert [r.arrival_s for r in read_trace(write("vidur.csv", with_times))] == [0.0, 1.0]


def test_scale_stretch_and_limit(write: Write) -> None:
    requests = read_trace(write("code.csv", AZURE), scale=0.125, stretch=2.0, limit=2)
    assert [(r.prompt_len, r.output_len) for r in requests] == [(601, 1), (398, 1)]
    assert requests[1].arrival_s == pytest.approx(2.0)
    assert read_trace(write("c.jsonl", MOONCAKE), scale=0.125)[0].block_len == 64


def test_equal_hash_ids_are_equal_tokens_and_nothing_else_is(write: Write) -> None:
    first, second, third = read_trace(write("conversation.jsonl", MOONCAKE), scale=0.125)
    ids = [prompt_token_ids(r, name=str(i), seed=0) for i, r in enumerate((first, second, third))]
    assert [len(each) for each in ids] == [first.prompt_len, second.prompt_len, third.prompt_len] == [125, 162, 1]
    assert ids[0] == ids[1][:125]
    assert ids[0] == prompt_token_ids(first, name="another", seed=0)
    assert ids[0] != prompt_token_ids(first, name="0", seed=1)
    own = TraceRequest(0.0, 50, 1)
    assert prompt_token_ids(own, name="a", seed=0) != prompt_token_ids(own, name="b", seed=0)
    assert all(0 <= token < 2**16 for token in ids[1])


def test_a_prompt_longer_than_its_blocks_goes_on_with_tokens_of_its_own() -> None:
    requests = [TraceRequest(0.0, 100, 1, hash_ids=(7,), block_len=64) for _ in range(2)]
    one, other = (prompt_token_ids(r, name=str(i), seed=0) for i, r in enumerate(requests))
    assert len(one) == len(other) == 100
    assert one[:64] == other[:64]
    assert one[64:] != other[64:]


def test_random_arrivals_have_the_rate_and_the_seed() -> None:
    requests = [TraceRequest(0.0, 10, 10)] * 4000
    moved = poisson_arrivals(requests, rate=5.0, seed=1)
    assert moved[0].arrival_s == 0
    assert moved[-1].arrival_s == pytest.approx(800, rel=0.1)
    assert moved == poisson_arrivals(requests, rate=5.0, seed=1) != poisson_arrivals(requests, rate=5.0, seed=2)


def test_normal_lengths() -> None:
    requests = normal_lengths(2000, prompt_len=325, output_len=8, seed=0)
    mean = sum(r.prompt_len for r in requests) / 2000
    spread = (sum((r.prompt_len - mean) ** 2 for r in requests) / 2000) ** 0.5
    assert (mean, spread) == pytest.approx((325, 97.5), rel=0.05)
    assert min(r.output_len for r in requests) >= 1


@pytest.mark.parametrize(
    ("name", "text", "part"),
    [
        ("empty.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "holds no requests"),
        ("other.csv", "a,b\n1,2\n", "request 1: no known columns; ContextTokens and GeneratedTokens"),
        ("word.csv", LENGTHS + "many,3,4,5\n", "request 3: invalid literal"),
        ("short.csv", LENGTHS + "3\n", "request 3"),
        ("negative.csv", LENGTHS + "-3,1,1,1\n", "request 3: a length or time is out of range"),
        ("late.jsonl", '{"timestamp": 1e999, "input_length": 1, "output_length": 1}\n', "out of range"),
        ("broken.jsonl", MOONCAKE + "{\n", "line 5 is not JSON"),
        ("list.jsonl", "[1]\n", "line 1 is not a JSON object"),
        ("binary.csv", "TIMESTAMP\0,x\n1,2\n", "known columns"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(name: str, text: str, part: str, write: Write) -> None:
    with pytest.raises(ConfigError, match=part) as caught:
        read_trace(write(name, text))
    assert name in str(caught.value)


def test_a_file_that_is_not_there_and_a_senseless_scale(tmp_path: Path, write: Write) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
    for factor in (0.0, -1.0, float("nan")):
        with pytest.raises(ConfigError, match="scale must be"):
            read_trace(write("code.csv", AZURE), scale=factor)
