"""ForcedCompletion: lead an output that runs out of tokens to an end that its grammar allows.

A model may write an array forever. So when few tokens are left, a short completion is computed ahead. If a sampled
token would leave no room for a completion, the completion's tokens are taken instead. The search is greedy, by JSON's
brackets and quotes, so the completion need not be the shortest. If none fits, the output is cut like any other.
"""

import re
from collections.abc import Sequence
from typing import Any

_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
# Bytes in the order of trial. Outside of strings: ends of objects and arrays, then short values. Inside of strings:
# the end, then characters of URIs, addresses and times, then letters.
_ENDS = {False: b"}]", True: b'"'}
_FILLERS = {False: b'nt10"[{-', True: b"a:@.Z-bcdefghijklmnopqrstuvwxyz"}
_ASCII = bytes(range(0x20, 0x7F))
_FIRST_CHECK = 256  # tokens left at the first check; most outputs end earlier by themselves
_NEAR = 64  # with no more spare tokens than this, every token is checked


class CompletionFinder:
    """Finder of tokens that complete an output. One per tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.eos_token_id: int = tokenizer.eos_token
        self._token_of: dict[int, int] = {}
        for byte in _ASCII:
            token_ids = tokenizer.greedy_tokenize(chr(byte))
            if len(token_ids) == 1:
                self._token_of[byte] = token_ids[0]

    def text_of(self, token_ids: Sequence[int]) -> bytes:
        """Return the text of tokens."""
        text: bytes = self._tokenizer.decode_bytes(list(token_ids))
        return text

    def find(self, matcher: Any, token_ids: Sequence[int], *, max_tokens: int) -> list[int] | None:
        """Return tokens that complete the output, or more than `max_tokens`; None if none are found.

        `token_ids`: the output so far, which the matcher has consumed; it is not changed. 14 us per token found.
        """
        matcher = matcher.deep_copy()
        completion: list[int] = []
        opened = open_string(self.text_of(token_ids))
        fillers = {is_in_string: list(dict.fromkeys(first + _ASCII)) for is_in_string, first in _FILLERS.items()}
        while len(completion) <= max_tokens and not matcher.is_accepting():
            is_in_string = bool(opened)
            step = matcher.compute_ff_tokens() or self._next(matcher, _ENDS[is_in_string], fillers[is_in_string])
            if not step or not matcher.consume_tokens(step):
                return None
            completion += step
            opened = open_string(opened + self.text_of(step))
        return completion

    def remainder(self, matcher: Any, completion: Sequence[int]) -> list[int] | None:
        """Return the end of an earlier completion that completes the output from here, or None. Takes 2 to 10 us."""
        rest = [*completion, self.eos_token_id]
        while rest and matcher.validate_tokens(rest) < len(rest):
            del rest[0]
        return rest[:-1] if rest else None

    def _next(self, matcher: Any, ends: bytes, fillers: list[int]) -> list[int]:
        for byte in (*ends, *fillers):
            token_id = self._token_of.get(byte)
            if token_id is not None and matcher.validate_tokens([token_id]):
                if byte not in ends:  # moved to the back, or zeros would follow "0.0" forever
                    fillers.remove(byte)
                    fillers.append(byte)
                return [token_id]
        return []


def open_string(text: bytes) -> bytes:
    """Return the text from the open quote on; empty outside of strings."""
    rest = _STRING.sub(b"", text)
    return rest[rest.index(b'"') :] if b'"' in rest else b""


class ForcedCompletion:
    """Completion of one output. Equal tokens and an equal limit always give equal decisions.

    not due, many tokens left → due: a completion that fits is kept after each check → started: its tokens are taken →
    done. If a check finds that no completion would fit after the sampled token, the completion starts in its place.
    """

    def __init__(self, finder: CompletionFinder) -> None:
        self._finder = finder
        self._next_check = _FIRST_CHECK  # number of tokens left at the next check
        self._found: list[int] = []  # completion found by the last check
        self._forced: list[int] | None = None  # completion whose tokens are taken
        self._start = 0  # position in the output where the completion begins

    def token_or(self, sampled: int, *, num_tokens: int) -> int:
        """Return the token to take after `num_tokens`: the completion's, or `sampled` before the completion's start.

        A retried step with drafts may be before the start.
        """
        if self._forced is None or num_tokens < self._start:
            return sampled
        return self._forced[num_tokens - self._start]

    @property
    def start_position(self) -> int | None:
        """Number of output tokens before the completion; None if it has not been started."""
        return None if self._forced is None else self._start

    def is_done(self, num_tokens: int) -> bool:
        """Return True if the completion ends after `num_tokens`."""
        return self._forced is not None and num_tokens == self._start + len(self._forced)

    def is_due(self, num_left: int) -> bool:
        """Return True if it is time to check that a completion fits, with `num_left` tokens left to sample."""
        return self._forced is None and num_left <= self._next_check

    def fits(self, matcher: Any, token_ids: Sequence[int], *, num_left: int) -> bool:
        """Return True if a completion of these tokens, which the matcher has consumed, fits into `num_left`."""
        completion = self._finder.remainder(matcher, self._found)
        if completion is None:
            completion = self._finder.find(matcher, token_ids, max_tokens=num_left)
        if completion is None and num_left > 2 * _NEAR:  # there is time to check again
            self._next_check = num_left // 2
            return True
        if completion is None or len(completion) > num_left:
            return False
        self._found = completion
        # A token can open something that takes many tokens to close, but hardly ever 16 on average and 64 at once.
        self._next_check = num_left - max(1, (num_left - len(completion) - _NEAR) // 16)
        return True

    def start(self, matcher: Any, token_ids: Sequence[int], *, num_left: int) -> None:
        """Complete the output from here, if a completion fits; else check again when half of the tokens are left."""
        completion = self._finder.find(matcher, token_ids, max_tokens=num_left)
        self._next_check = num_left // 2
        if completion is not None and len(completion) <= num_left:
            self._forced, self._start = completion or [self._finder.eos_token_id], len(token_ids)
