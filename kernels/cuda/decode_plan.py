"""Work list of a decode: the keys that each program of a fixed grid reads. Pure functions; knows no tensor and no GPU.

Rows of one query token lie one after the other; the line is cut into shares of equal cost, one per program. A piece is
the part of a row in one share. A row of several pieces gets a slot for each of them, and is merged afterwards.

    rows       |------ 0 ------|- 1 -|-------------- 2 --------------|
    programs   |    0    |     1     |     2     |     3     |   4   |
    pieces     |--- s0 --|- s1 |- direct -|- s2 -|---- s3 ---|- s4 --|

With `spans`, a row's pieces are its spans between fixed positions instead, dealt out in any order. Then the pieces of a
row, and so the order of its sums, depend on the row's own length alone.
"""

from heapq import heapreplace
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

# Cost of a piece beyond its keys, in keys: reading q and filling the pipeline takes the time of some 16 KiB. Untuned.
PIECE_COST = 32
PIECE_FIELDS, MERGE_FIELDS = 4, 3


class Spans(NamedTuple):
    """Fixed positions at which keys are split: each `short` keys up to position `limit`, each `long` ones beyond.

    Both are multiples of a tile, `long` is one of `short`, `limit` one of `long`.
    """

    short: int = 256
    long: int = 1024
    limit: int = 8192

    def starts(self, end: int) -> Array:
        """Return the first keys of the spans below `end`, but for the first one's."""
        return np.concatenate(
            [
                np.arange(self.short, min(end, self.limit + 1), self.short),
                np.arange(self.limit + self.long, end, self.long),
            ]
        )


# Spans of exact mode. Prompts pay for each by adding a state to a state, single rows are spread over few programs if
# there are few. Untuned.
SPANS = Spans()


class DecodePlan(NamedTuple):
    """Pieces of all programs in order, and the rows to merge. Int64 arrays."""

    piece_loc: Array  # [P + 1]: program p takes the pieces [piece_loc[p], piece_loc[p + 1])
    pieces: Array  # [N, 4]: row, first key, end of keys, slot; slot -1: the row has no other piece
    merges: Array  # [M, 3]: row, its first slot, end of its slots

    def packed(self, *, num_pieces: int, num_rows: int) -> Array:
        """Return one int32 array: piece_loc, then room for `num_pieces` pieces and `num_rows` merges, padded by -1."""
        assert len(self.pieces) <= num_pieces
        pieces, merges = np.full((num_pieces, PIECE_FIELDS), -1), np.full((num_rows, MERGE_FIELDS), -1)
        pieces[: len(self.pieces)], merges[: len(self.merges)] = self.pieces, self.merges
        return np.concatenate([self.piece_loc, pieces.ravel(), merges.ravel()]).astype(np.int32)


def plan_decode(
    query_start_loc: Array,
    seq_lens: Array,
    *,
    num_programs: int,
    tile: int,
    min_tokens: int,
    window: int = 0,
    spans: Spans | None = None,
) -> DecodePlan:
    """Deal the keys of rows with one query token to at most `num_programs` programs.

    query_start_loc [B + 1], seq_lens [B] as in RaggedBatch. Pieces begin at multiples of `tile`, the keys of a step.
    Shares have some `min_tokens` keys at least. `window`: number of keys that a query sees, 0: all. A row of 0 keys is
    one empty piece.
    """
    rows = np.flatnonzero(np.diff(query_start_loc) == 1)
    if not len(rows):
        nothing = np.zeros((0, PIECE_FIELDS), np.int64)
        return DecodePlan(np.zeros(num_programs + 1, np.int64), nothing, nothing[:, :MERGE_FIELDS])
    ends = seq_lens[rows].astype(np.int64)
    begins = np.maximum(ends - window, 0) // tile * tile if window else np.zeros_like(ends)
    line = np.concatenate([[0], np.maximum(ends - begins, 1).cumsum()])  # places of the rows on one line
    if spans is not None:
        starts = np.sort(np.concatenate([line[:-1], _span_starts(begins, ends, line, spans)]))
    else:
        cuts = _shares(begins, ends, line, num_programs, tile, min_tokens)
        starts = np.unique(np.concatenate([line[:-1], cuts[cuts < line[-1]]]))
    owners = np.searchsorted(line, starts, side="right") - 1
    shift = begins[owners] - line[owners]  # from a place to a key
    stops = np.minimum(ends[owners], np.append(starts[1:], line[-1]) + shift)
    counts = np.bincount(owners, minlength=len(rows))
    is_part = counts[owners] > 1
    slots = np.where(is_part, is_part.cumsum() - 1, -1)
    pieces = np.stack([rows[owners], starts + shift, stops, slots], axis=1)
    merged = counts > 1
    slot_ends = counts[merged].cumsum()
    merges = np.stack([rows[merged], slot_ends - counts[merged], slot_ends], axis=1)
    if spans is not None:
        return DecodePlan(*_dealt(pieces, num_programs), merges)
    piece_loc = np.full(num_programs + 1, len(starts))
    piece_loc[: len(cuts) + 1] = np.searchsorted(starts, np.concatenate([[0], cuts]))
    return DecodePlan(piece_loc, pieces, merges)


def _shares(begins: Array, ends: Array, line: Array, num_programs: int, tile: int, min_tokens: int) -> Array:
    """Return the places between two programs' shares, ascending, each at the nearest multiple of `tile` in its row."""
    costs = np.concatenate([[0], (ends - begins + PIECE_COST).cumsum()])
    total = int(costs[-1])
    count = max(1, min(num_programs, total // (min_tokens + PIECE_COST)))
    targets = np.arange(1, count) * total // count
    rows = np.searchsorted(costs, targets, side="right") - 1
    keys = begins[rows] + targets - costs[rows] - PIECE_COST
    keys = np.clip((keys + tile // 2) // tile * tile, begins[rows], ends[rows])
    return np.where(keys < ends[rows], line[rows] + keys - begins[rows], line[rows + 1])


def _dealt(pieces: Array, num_programs: int) -> tuple[Array, Array]:
    """Deal pieces, the largest first. Returns (piece_loc, the pieces in the order of the programs)."""
    sizes = pieces[:, 2] - pieces[:, 1] + PIECE_COST
    by_size = np.argsort(-sizes, kind="stable")
    largest, rounds = int(sizes.max()), -(-len(pieces) // num_programs)
    if rounds == 1 or 1.1 * sizes.sum() > largest * len(pieces):
        # Round by round, and of equal pieces to no more programs than the fullest one needs beside it.
        programs = np.arange(len(pieces)) % -(-len(pieces) // rounds)
    else:
        programs = _longest_first(sizes[by_size].tolist(), num_programs)
    order = by_size[np.argsort(programs, kind="stable")]
    taken = np.bincount(programs, minlength=num_programs)
    return np.concatenate([[0], taken.cumsum()]), pieces[order]


def _longest_first(sizes: list[int], num_programs: int) -> Array:
    """Give each piece to the program that has the least (Graham 1969)."""
    loads = list(range(num_programs))  # load · num_programs + program, a heap
    programs = []
    for size in sizes:
        load, program = divmod(loads[0], num_programs)
        heapreplace(loads, (load + size) * num_programs + program)
        programs.append(program)
    return np.array(programs)


def _span_starts(begins: Array, ends: Array, line: Array, spans: Spans) -> Array:
    """Return the places of the spans' first keys within the rows."""
    positions = spans.starts(int(ends.max()))
    first, last = np.searchsorted(positions, begins, side="right"), np.searchsorted(positions, ends)
    counts = last - first
    rows = np.repeat(np.arange(len(ends)), counts)
    numbers = np.arange(counts.sum()) - np.repeat(counts.cumsum() - counts, counts)
    places: Array = line[rows] + positions[first[rows] + numbers] - begins[rows]
    return places
