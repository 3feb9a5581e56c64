"""Drafters propose the next tokens of requests; the target model then verifies them in one pass.

A drafter may be wrong, slow or broken: Speculation checks its drafts, so it costs time, never a wrong token.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ...core.request import Request


class Drafter(Protocol):
    """All calls come from the step's thread, one at a time."""

    def draft(self, wanted: Mapping[Request, int]) -> Mapping[Request, Sequence[int]]:
        """The tokens that come next, at most so many of each request; fewer, or none, where it knows none."""

    def num_unread_tokens(self, request: Request) -> int:
        """Tokens of the request that it must still read, at a cost, before it can draft; 0 if reading costs nothing."""

    def forget(self, request: Request) -> None:
        """The request has ended."""
