"""Drafter: proposes the next tokens of requests, which the target model then verifies in one pass.

A drafter may be wrong, slow or broken: Speculation checks its drafts, so a bad drafter costs time, never a wrong token.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol

from ...core.request import Request
from .confidence import Confidence


class Drafter(Protocol):
    """Proposer of tokens. All calls come from the step's thread, one at a time."""

    @property
    def confidence(self) -> Confidence | None:
        """What ends drafts where tokens are no longer worth their cost; None if DraftLengths alone does."""

    def draft(self, wanted: Mapping[Request, int]) -> Mapping[Request, Sequence[int]]:
        """Return the proposed next tokens, at most `wanted` for each request; fewer or none are allowed."""

    def num_unread_tokens(self, request: Request) -> int:
        """Return how many of the request's tokens must be read, at a cost, before drafting; 0 if reading is free."""

    def forget(self, request: Request) -> None:
        """Drop a request that has ended."""
