"""Trace files of every kind, written by hand, and the complaints about bad ones."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tables import table

from splitfuse.client.bench.traces import TraceError, TraceRow, read_trace

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
VIDUR = "arrived_at,num_prefill_tokens,num_decode_tokens\n2.5,10,20\n3.5,30,40\n"
LENGTHS = "num_prefill_tokens,num_decode_tokens,num_total_tokens,pd_ratio\n74,918,992,0.08\n290,905,1195,0.3\n"


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return path

    return write


def test_azure(write: Write) -> None:
    requests = read_trace(write("code.csv", AZURE))
    assert [(r.prompt_len, r.output_len) for r in requests] == [(4808, 10), (3180, 8), (110, 27)]
    assert [r.arrival for r in requests] == pytest.approx([0.0, 1.0, 60.0])


def test_mooncake(write: Write) -> None:
    requests = read_trace(write("conversation.jsonl", MOONCAKE))
    assert [r.arrival for r in requests] == [0.0, 1.0, 1.0]
    assert [r.hash_ids for r in requests] == [(0, 1), (0, 1, 2), (3,)]


def test_lengths_alone_and_vidurs_times(write: Write) -> None:
    assert read_trace(write("sharegpt.csv", LENGTHS)) == [TraceRow(74, 918), TraceRow(290, 905)]
    assert [r.arrival for r in read_trace(write("vidur.csv", VIDUR))] == [0.0, 1.0]


def test_scale_stretch_and_limit(write: Write) -> None:
    requests = read_trace(write("code.csv", AZURE), scale=0.125, stretch=2.0, limit=2)
    assert [(r.prompt_len, r.output_len) for r in requests] == [(601, 1), (398, 1)]
    assert requests[1].arrival == pytest.approx(2.0)
    assert read_trace(write("c.jsonl", MOONCAKE), scale=0.125)[0].block_len == 64


def test_scale_multiplies_all_lengths() -> None:
    row = TraceRow(4808, 10, 3.0, (7,))
    assert row.scaled(0.125) == TraceRow(601, 1, 3.0, (7,), block_len=64)
    assert row.scaled(8) == TraceRow(38464, 80, 3.0, (7,), block_len=4096)
    assert TraceRow(1, 1).scaled(0.125) == TraceRow(1, 1, block_len=64)


def test_rows_are_sorted_by_arrival(write: Write) -> None:
    rows = "arrived_at,num_prefill_tokens,num_decode_tokens\n3.5,30,40\n2.5,10,20\n"
    assert read_trace(write("vidur.csv", rows)) == [TraceRow(10, 20, 0.0), TraceRow(30, 40, 1.0)]


@pytest.mark.parametrize(
    ("name", "text", "part"), [*table(__file__, "refused"), ("latin.csv", "\ud800", "cannot be read")]
)
def test_a_trace_that_cannot_be_read_names_the_place(name: str, text: str, part: str, write: Write) -> None:
    with pytest.raises(TraceError, match=part) as caught:
        read_trace(write(name, text))
    assert name in str(caught.value)


def test_a_file_that_is_not_there_and_a_senseless_scale(tmp_path: Path, write: Write) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_trace(tmp_path / "none.csv")
    for factor in (0.0, -1.0, float("nan")):
        with pytest.raises(TraceError, match="scale must be"):
            read_trace(write("code.csv", AZURE), scale=factor)
