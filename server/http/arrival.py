"""Arrival of the HTTP request that a task handles: the latencies of its work begin there, as its client sees them."""

import time
from contextvars import ContextVar
from dataclasses import dataclass, field


@dataclass(slots=True)
class Arrival:
    """Monotonic time of an arrival. `is_answered`: what begins later is no part of the client's wait."""

    time: float = field(default_factory=time.monotonic)
    is_answered: bool = False


_CURRENT: ContextVar[Arrival | None] = ContextVar("splitfuse.arrival", default=None)


def note_arrival() -> Arrival:
    """Note that this task handles a request from now on."""
    arrival = Arrival()
    _CURRENT.set(arrival)
    return arrival


def arrival_time() -> float | None:
    """Return when the request came that this task handles; None if it handles none, or the answer has begun."""
    arrival = _CURRENT.get()
    return None if arrival is None or arrival.is_answered else arrival.time
