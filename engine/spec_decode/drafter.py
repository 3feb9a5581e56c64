"""Drafters guess how requests go on; the target model then verifies the guesses in one pass.

A drafter may be wrong, slow or broken: what it says is checked by `speculation`, so that it costs time, never a token.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ..request import Request


class Drafter(Protocol):
    """Guesses. All calls come from the step's thread, one at a time."""

    def draft(self, wanted: Mapping[Request, int]) -> Mapping[Request, Sequence[int]]:
        """The tokens that come next, at most so many of each request; fewer, or none, where it has no idea."""
        ...

    def num_unread_tokens(self, request: Request) -> int:
        """Tokens of the request that it must still read, at a cost, before it can draft; 0 if reading costs nothing."""
        ...

    def forget(self, request: Request) -> None:
        """The request has ended."""
        ...
