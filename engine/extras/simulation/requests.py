"""The requests of a simulation: what arrives, and what became of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request to come, `arrival_s` seconds after the start.

    `prompt` makes its token ids, once it has arrived; without it nothing is known of the contents, which a
    prefix cache cannot do without.
    """

    arrival_s: float
    prompt_len: int
    output_len: int
    prompt: Callable[[], Sequence[int]] | None = None


@dataclass(slots=True)
class Served:
    """When a request came and when each of its tokens did, in simulated seconds."""

    prompt_len: int
    arrival_s: float
    token_times: list[float] = field(default_factory=list)
