"""Landing: an output that runs out of tokens still ends as its grammar asks.

A model may write an array for ever. So when few tokens are left a short way to the end is kept in view, and where a
drawn token would leave no room for one, the way is taken instead. It is found greedily, by means of JSON's brackets and
quotes, so it need not be the shortest; where none is found within the tokens left the output is cut as any other.
"""

import re
from collections.abc import Sequence
from typing import Any

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
# Tried in this order. Outside of strings: what ends things, then the short values. Inside of them: their end, then what
# URIs, addresses and times wait for, then letters.
_ENDS = {False: b"}]", True: b'"'}
_FILLERS = {False: b'nt10"[{-', True: b"a:@.Z-bcdefghijklmnopqrstuvwxyz"}
_ASCII = bytes(range(0x20, 0x7F))
_FIRST_LOOK = 256  # tokens left; most outputs have ended by themselves before
_NEAR = 64  # with no more than this to spare every token is looked at


class Ways:
    """Finds ways to the end. One for each tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id: int = tokenizer.eos_token
        self._token_of: dict[int, int] = {}
        for byte in _ASCII:
            token_ids = tokenizer.greedy_tokenize(chr(byte))
            if len(token_ids) == 1:
                self._token_of[byte] = token_ids[0]

    def find(self, matcher: Any, token_ids: Sequence[int], *, most: int) -> list[int] | None:
        """Some tokens after which the output is complete, or more than `most`; None if they are not found.

        `token_ids`: the output so far, at whose end the matcher stands; it stays there. Takes 14 us per token found.
        """
        matcher = matcher.deep_copy()
        way: list[int] = []
        open_string = _open_string(self._tokenizer.decode_bytes(list(token_ids)))
        fillers = {is_in_string: list(dict.fromkeys(first + _ASCII)) for is_in_string, first in _FILLERS.items()}
        while len(way) <= most and not matcher.is_accepting():
            is_in_string = bool(open_string)
            step = matcher.compute_ff_tokens() or self._next(matcher, _ENDS[is_in_string], fillers[is_in_string])
            if not step or not matcher.consume_tokens(step):
                return None
            way += step
            open_string = _open_string(open_string + self._tokenizer.decode_bytes(step))
        return way

    def rest(self, matcher: Any, way: Sequence[int]) -> list[int] | None:
        """The part of a way from another place that leads to the end from here; None if none does. Takes 2 to 10 us."""
        checked = [*way, self.eos_token_id]
        while checked and matcher.validate_tokens(checked) < len(checked):
            del checked[0]
        return checked[:-1] if checked else None

    def _next(self, matcher: Any, ends: bytes, fillers: list[int]) -> list[int]:
        for byte in (*ends, *fillers):
            token_id = self._token_of.get(byte)
            if token_id is not None and matcher.validate_tokens([token_id]):
                if byte not in ends:  # to the back, or "0.0" would be followed by zeros for ever
                    fillers.remove(byte)
                    fillers.append(byte)
                return [token_id]
        return []


def _open_string(text: bytes) -> bytes:
    """From the quote that is not closed on; empty outside of strings."""
    rest = _STRING.sub(b"", text)
    return rest[rest.index(b'"') :] if b'"' in rest else b""


class Landing:
    """When and how one output lands. The same tokens and the same limit always give the same decisions."""

    def __init__(self, ways: Ways) -> None:
        self._ways = ways
        self._next_look = _FIRST_LOOK  # when so many tokens are left
        self._in_view: list[int] = []  # a way that led to the end from where it was last looked for
        self._way: list[int] | None = None  # the one that is taken
        self._start = 0  # where in the output it begins

    @property
    def has_begun(self) -> bool:
        """Whether a way to the end is settled."""
        return self._way is not None

    def settles(self, num_tokens: int) -> bool:
        """Whether that way says what comes after so many tokens; a step with drafts, tried again, may begin before."""
        return self._way is not None and num_tokens >= self._start

    def token(self, num_tokens: int) -> int:
        """What to take after so many tokens, once it has begun."""
        assert self._way is not None
        return self._way[num_tokens - self._start]

    def is_down(self, num_tokens: int) -> bool:
        """Whether the way ends after so many tokens."""
        return self._way is not None and num_tokens == self._start + len(self._way)

    def is_due(self, num_left: int) -> bool:
        """Whether it is time to look for a way, so many tokens being left to draw."""
        return self._way is None and num_left <= self._next_look

    def fits(self, matcher: Any, token_ids: Sequence[int], *, num_left: int) -> bool:
        """Whether from these tokens on, at whose end the matcher stands, a way fits into so many."""
        way = self._ways.rest(matcher, self._in_view)
        if way is None:
            way = self._ways.find(matcher, token_ids, most=num_left)
        if way is None and num_left > 2 * _NEAR:  # nobody knows, and there is time to look again
            self._next_look = num_left // 2
            return True
        if way is None or len(way) > num_left:
            return False
        self._in_view = way
        # A token can open what takes many to close, but hardly ever 16 on average and 64 at once.
        self._next_look = num_left - max(1, (num_left - len(way) - _NEAR) // 16)
        return True

    def begin(self, matcher: Any, token_ids: Sequence[int], *, num_left: int) -> bool:
        """Land from here on, if there is a way; else look again when half is left."""
        way = self._ways.find(matcher, token_ids, most=num_left)
        self._next_look = num_left // 2
        if way is None or len(way) > num_left:
            return False
        self._way, self._start = way or [self._ways.eos_token_id], len(token_ids)
        return True
