"""Prompt lookup: draft the tokens that followed the last time the text ended like this (Saxena 2023).

No model, but an index of the positions of each n-gram in prompt and output ("Prompt Lookup Decoding"). Drafts are right
wherever an answer repeats its prompt or itself: edits, summaries, lists, code.
"""

from array import array
from collections.abc import Mapping, Sequence

from ...core.request import Request

# Older positions of an n-gram that are searched for a longer match. The most recent ones are the best guesses.
_MAX_CANDIDATES = 16
# Tokens that an index covers; older ones are forgotten. About 150 bytes each.
_WINDOW = 65_536
# Tokens that one call adds to an index: 10 ms, so that a long prompt is indexed over a few steps.
_MAX_INDEXED_AT_ONCE = 16_384

Gram = tuple[int, ...]


class NgramIndex:
    """Hash chains over one growing sequence, like LZ77's: the last position of each n-gram, and for each position the
    previous one of its n-gram. Adding a token is O(1), and so is finding the longest earlier match of the end.

        positions (ends of n-grams):  [0, base) forgotten | [base, base + len(previous)) indexed | not yet
    """

    def __init__(self, token_ids: Sequence[int], *, min_n: int, max_n: int, window: int = _WINDOW) -> None:
        """Create an index of `token_ids`, which may grow. A match has min_n tokens or more; only max_n are compared."""
        self._token_ids = token_ids
        self._min_n = min_n
        self._max_n = max_n
        self._window = window
        self._last: dict[Gram, int] = {}
        self._base = min_n
        self._previous = array("i")

    def extend(self, limit: int = _MAX_INDEXED_AT_ONCE) -> bool:
        """Index up to `limit` new positions. Return True if the whole sequence is indexed."""
        tokens, last, min_n = self._token_ids, self._last, self._min_n
        start = self._base + len(self._previous)
        stop = min(len(tokens), start + limit)
        for position in range(start, stop):
            gram = tuple(tokens[position - min_n : position])
            self._previous.append(last.get(gram, 0))
            last[gram] = position
        if len(self._previous) > 2 * self._window:
            self._shorten()
        return stop >= len(tokens)

    def _shorten(self) -> None:
        base = self._base + len(self._previous) - self._window
        del self._previous[: base - self._base]
        self._base = base
        self._last = {gram: position for gram, position in self._last.items() if position >= base}

    def find(self) -> tuple[int, int]:
        """Return (position, n) of the longest earlier match of the sequence's end, the latest if equal; n 0 if none."""
        tokens, min_n, max_n = self._token_ids, self._min_n, self._max_n
        end = len(tokens)
        position = self._last.get(tuple(tokens[end - min_n :]), 0) if end >= min_n else 0
        best, best_n = 0, 0
        for _ in range(_MAX_CANDIDATES):
            if position < self._base:
                break
            n = min_n
            while n < max_n and n < position and tokens[position - n - 1] == tokens[end - n - 1]:
                n += 1
            if n > best_n:
                best, best_n = position, n
                if n == max_n:
                    break
            position = self._previous[position - self._base]
        return best, best_n

    def propose(self, count: int) -> list[int]:
        """Return `count` tokens that followed the longest match; none without a match."""
        position, n = self.find()
        return self.following(position, count) if n else []

    def following(self, position: int, count: int) -> list[int]:
        """Return `count` tokens from a position on; past the sequence's end the repetition goes on."""
        draft = list(self._token_ids[position : position + count])
        period = len(self._token_ids) - position
        while len(draft) < count:
            draft.append(draft[-period])
        return draft


class NgramDrafter:
    """Drafter with an index per request, built at its first draft."""

    confidence = None

    def __init__(self, *, min_n: int, max_n: int) -> None:
        self._min_n = min_n
        self._max_n = max_n
        self._indices: dict[Request, NgramIndex] = {}

    def draft(self, wanted: Mapping[Request, int]) -> dict[Request, list[int]]:
        """Like Drafter.draft, from the request's own tokens."""
        drafts = {}
        for request, count in wanted.items():
            index = self.index(request)
            if index.extend() and (draft := index.propose(count)):
                drafts[request] = draft
        return drafts

    def index(self, request: Request) -> NgramIndex:
        """Return the request's index, made when first asked for."""
        if request not in self._indices:
            self._indices[request] = NgramIndex(request.token_ids, min_n=self._min_n, max_n=self._max_n)
        return self._indices[request]

    def num_unread_tokens(self, request: Request) -> int:
        """Return 0: the index is cheap to build."""
        return 0

    def forget(self, request: Request) -> None:
        """Drop the index of a request that has ended."""
        self._indices.pop(request, None)
