"""Pace: limits of a step, and the order of its prompts, that a Pacer (ports.py) derives from times."""

from collections.abc import Container, Sequence
from itertools import takewhile
from typing import NamedTuple

from .request import Request, Status


class Pace(NamedTuple):
    """Pace of one step. An empty pace leaves the step its whole budget, and the prompts in queue order."""

    budget: int | None = None  # tokens, if fewer than max_num_batched_tokens
    background_budget: int | None = None  # tokens of background requests beside interactive ones
    order: Sequence[Request] = ()  # interactive prompts, the first to be computed first; others follow in queue order

    def sorted(self, requests: Sequence[Request], *, without: Container[Request] = ()) -> Sequence[Request]:
        """Return the requests, `order` first where it names them. `without`: requests of `order` to leave out."""
        if not self.order:
            return requests
        places = {request: place for place, request in enumerate(self.order)}
        return sorted((r for r in requests if r not in without), key=lambda r: places.get(r, len(places)))

    @property
    def ahead(self) -> list[Request]:
        """Waiting requests that go before every prompt which has begun."""
        return list(takewhile(lambda request: request.status is not Status.RUNNING, self.order))
