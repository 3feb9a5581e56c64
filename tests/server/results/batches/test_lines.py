"""Lines of an upload, which are counted piece by piece."""

import io
import random

import pytest

from splitfuse.server.results.batches import lines
from splitfuse.server.results.batches.lines import longest_line, read_line


@pytest.mark.parametrize("piece_bytes", [1, 2, 5, 1000])
def test_lines_are_counted_across_pieces(piece_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "_PIECE_BYTES", piece_bytes)
    rng = random.Random(1)
    for _ in range(500):
        contents = bytes(rng.choices(b"a \r\n", k=rng.randint(0, 30)))
        split = contents.split(b"\n")
        expected = sum(1 for line in split if line.strip()), max(map(len, split))
        assert longest_line(io.BytesIO(contents)) == expected, contents


def test_a_line_may_begin_with_a_byte_order_mark() -> None:
    text = b'{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"prompt": "x"}}'
    assert read_line(b"\xef\xbb\xbf" + text, endpoint="/v1/completions") == read_line(text, endpoint="/v1/completions")
