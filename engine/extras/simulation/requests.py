"""Requests of a simulation: arrivals, and the times of their tokens."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Arrival:
    """Request that will come `arrival_s` seconds after the start.

    `prompt` returns its token ids after its arrival. Without `prompt` the contents are unknown; a prefix cache needs
    them.
    """

    arrival_s: float
    prompt_len: int
    output_len: int
    prompt: Callable[[], Sequence[int]] | None = None
    tenant: str = ""


@dataclass(slots=True)
class Served:
    """Times of a request's arrival and of its tokens, in simulated seconds."""

    prompt_len: int
    arrival_s: float
    token_times: list[float] = field(default_factory=list)
