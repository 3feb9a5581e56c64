from itertools import pairwise
from random import Random

import numpy as np
import pytest

from splitfuse.kernels.cuda.decode_plan import PIECE_COST, DecodePlan, Spans, plan_decode

P, TILE, MIN_TOKENS, SPANS = 66, 32, 256, Spans()  # 8 KV heads on an H100


def plan(lengths: list[int], *, window: int = 0, spans: Spans | None = None, num_programs: int = P) -> DecodePlan:
    return plan_decode(
        np.arange(len(lengths) + 1), np.array(lengths), num_programs=num_programs, tile=TILE, min_tokens=MIN_TOKENS,
        window=window, spans=spans,
    )  # fmt: skip


def check(found: DecodePlan, lengths: list[int], *, window: int = 0, spans: Spans | None = None) -> None:
    """Check that every visible key is read once, in pieces that slots and merges agree with."""
    keys: dict[int, list[tuple[int, int, int]]] = {}
    for row, begin, end, slot in found.pieces.tolist():
        keys.setdefault(row, []).append((begin, end, slot))
    assert sorted(keys) == list(range(len(lengths)))
    merges = {row: range(first, end) for row, first, end in found.merges.tolist()}
    for row, length in enumerate(lengths):
        pieces, oldest = sorted(keys[row]), max(length - window, 0) if window else 0
        assert pieces[0][0] == oldest // TILE * TILE
        assert pieces[-1][1] == length
        assert all(before[1] == after[0] for before, after in pairwise(pieces))
        assert all(begin % TILE == 0 for begin, _, _ in pieces)
        assert [slot for _, _, slot in pieces] == (list(merges[row]) if row in merges else [-1])
        if spans is not None:
            inner = [begin for begin, _, _ in pieces[1:]]
            assert inner == [at for at in spans.starts(length) if at > pieces[0][0]]
    assert found.piece_loc[0] == 0
    assert found.piece_loc[-1] == len(found.pieces)
    assert (np.diff(found.piece_loc) >= 0).all()
    assert [slot for slots in merges.values() for slot in slots] == list(range(sum(map(len, merges.values()))))


def costs(found: DecodePlan, *, each: int) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    """Return the programs' keys, and `each` more for every piece; programs without work are left out."""
    sizes = found.pieces[:, 2] - found.pieces[:, 1] + each
    sums = np.concatenate([[0], sizes.cumsum()])[found.piece_loc]
    work = np.diff(sums)
    return work[work > 0]


def drawn(seed: int) -> list[int]:
    """Draw a mix of lengths: short or long rows, or a few long ones among many short ones."""
    random = Random(seed)
    kind, count = seed % 4, random.choice([1, 2, 3, 7, 8, 32, 64, 200, 256, 512])
    longest = random.choice([512, 4096, 32768, 131072])
    count = max(1, min(count, 2**20 // longest))
    if kind == 0:
        return [random.randint(128, longest) for _ in range(count)]
    if kind == 1:
        return [int(2 ** random.uniform(7, np.log2(longest))) for _ in range(count)]
    if kind == 2:
        return [longest if random.random() < 0.1 else random.randint(128, 1024) for _ in range(count)]
    return [longest] * count


@pytest.mark.parametrize("spans", [None, SPANS], ids=str)
def test_programs_of_200_mixes_read_equal_bytes(spans: Spans | None) -> None:
    num_unequal = 0
    for seed in range(200):
        lengths = drawn(seed)
        found = plan(lengths, spans=spans)
        check(found, lengths, spans=spans)
        work = costs(found, each=0)
        num_unequal += work.max() > 1.3 * work.mean()
        # A span is never shared between programs.
        assert spans is None or work.max() <= work.mean() + SPANS.long + PIECE_COST
    assert num_unequal <= (0 if spans is None else 20)


@pytest.mark.parametrize("spans", [None, SPANS], ids=str)
def test_a_long_row_stalls_nobody(spans: Spans | None) -> None:
    mixed, even = [1024] * 63 + [131072], [3072] * 64
    longest = [costs(plan(lengths, spans=spans), each=0).max() for lengths in (mixed, even)]
    assert longest[0] <= 1.3 * longest[1]


def test_many_tiny_rows_are_dealt_by_their_number() -> None:
    found = plan([8] * 256)
    assert costs(found, each=PIECE_COST).max() <= 1.3 * (MIN_TOKENS + PIECE_COST)


def test_a_rows_pieces_depend_on_its_length_alone() -> None:
    random = Random(0)
    for seed in range(100):
        length, window = random.randint(0, 9000), random.choice([0, 1, 100, 300, 4096])
        alone = sorted(plan([length], window=window, spans=SPANS).pieces[:, 1:3].tolist())
        among = plan([*drawn(seed), length], window=window, spans=SPANS, num_programs=random.choice([1, 4, P]))
        assert sorted(piece[1:3] for piece in among.pieces.tolist() if piece[0] == len(drawn(seed))) == alone


@pytest.mark.parametrize("spans", [None, SPANS], ids=str)
@pytest.mark.parametrize("window", [0, 1, 31, 300, 10**6])
def test_windows_and_padding(window: int, spans: Spans | None) -> None:
    for seed in range(40):
        random = Random(seed)
        lengths = [random.choice([0, 1, 31, 32, 33, 255, 256, 257, 5000]) for _ in range(random.randint(1, 40))]
        check(plan(lengths, window=window, spans=spans), lengths, window=window, spans=spans)


def test_rows_of_other_numbers_of_tokens_are_left_out() -> None:
    starts = np.array([0, 1, 6, 6, 7])  # 1, 5, 0 and 1 tokens
    found = plan_decode(starts, np.array([300, 9, 0, 40]), num_programs=4, tile=TILE, min_tokens=64)
    assert set(found.pieces[:, 0].tolist()) == {0, 3}
    nothing = plan_decode(starts[1:3] - 1, np.array([9]), num_programs=4, tile=TILE, min_tokens=64)
    assert len(nothing.packed(num_pieces=5, num_rows=1)) == 5 + 5 * 4 + 3


def test_a_packed_plan_has_a_size_of_its_own() -> None:
    """Like a CUDA graph: equal room for any lengths, and no more pieces than rows and programs."""
    for seed in range(100):
        found = plan(drawn(seed))
        rows = len(drawn(seed))
        assert len(found.packed(num_pieces=rows + P, num_rows=rows)) == P + 1 + 4 * (rows + P) + 3 * rows


def test_spans_begin_at_fixed_positions() -> None:
    assert Spans(4, 8, 16).starts(33).tolist() == [4, 8, 12, 16, 24, 32]
    assert Spans(4, 8, 16).starts(16).tolist() == [4, 8, 12]
    assert Spans(4, 8, 16).starts(4).tolist() == []
