"""StopLog: obstacles of the waiting requests, by time; one entry for all of them."""

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from ...core.plan import AdmissionBlock
from ...core.request import Request

_MAX_ENTRIES = 512  # a queue of 512 requests advances that often


class Wait(NamedTuple):
    """Wait of a request for `why`. `num_missing` blocks were lacking, if the request was first in the queue."""

    start: float
    end: float
    why: str
    num_missing: int = 0


class _Entry(NamedTuple):
    time: float
    number: int
    arrival_time: float
    reason: str
    num_missing: int


class StopLog:
    """Log of one class of requests (interactive or background). It keeps the last _MAX_ENTRIES changes."""

    def __init__(self, *, is_fair: bool) -> None:
        """Create an empty log. `is_fair`: a later request goes first because its tenant has had less."""
        self._passed = "fairness" if is_fair else "priority"
        self._entries: deque[_Entry] = deque(maxlen=_MAX_ENTRIES)

    def note(self, stop: AdmissionBlock, now: float) -> None:
        """Note that a decision stopped admission here."""
        request, last = stop.request, self._entries[-1] if self._entries else None
        if last is None or (last.number, last.reason) != (request.arrival_order, stop.reason):
            entry = _Entry(now, request.arrival_order, request.arrival_time, stop.reason, stop.num_missing)
            self._entries.append(entry)

    def waits(self, request: Request, start: float, end: float) -> list[Wait]:
        """Return the request's waits in this time, in order, without gaps; adjacent waits of one reason are joined."""
        waits: list[Wait] = []
        for wait in self._backwards(request, start, end):
            if waits and waits[-1].why == wait.why:
                wait = wait._replace(end=waits.pop().end)
            waits.append(wait)
        return waits[::-1]

    def _backwards(self, request: Request, start: float, end: float) -> Iterator[Wait]:
        for entry in reversed(self._entries):
            start_of_wait = max(entry.time, start)
            if start_of_wait < end:
                is_first = entry.number == request.arrival_order
                passed = entry.number > request.arrival_order and entry.reason != "policy"
                why = self._passed if passed else entry.reason
                yield Wait(start_of_wait, end, why, entry.num_missing if is_first else 0)
                end = start_of_wait
            if entry.time <= start:
                return
        if end > start:
            yield Wait(start, end, "unknown")
