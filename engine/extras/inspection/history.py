"""History of a request: its waits and its shares of steps. Plain data; histories.py writes it.

From its arrival on a request is in one phase at a time, so the seconds of its phases add up to its life:

    queue.WHY        not admitted yet. WHY: step (until the next step was decided), budget, sequences, blocks, policy,
                     preemption, interactive, tenant, parent, fairness, priority, unknown (older than the log)
    interrupted      another process ran it
    prefill          its prompt is being computed; recompute: computed again after a preemption
    paused.WHY       it runs, but steps leave it out. WHY: budget, policy
    decode.alone     steps that computed no prompt; decode.beside_prompts; decode.between_steps
    preempted.WHY    like queue.WHY, after a preemption
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

_NUM_OWN = {"waits": 0, "chunk": 2}  # numbers of an event that do not depend on other requests' sizes
MAX_EVENTS = 64  # a usual request has 3 to 10; 128,000 tokens in chunks of 512 would have 250


class Event(NamedTuple):
    """Event at `time`, in seconds since arrival. The meaning of `numbers` depends on `what`:

    goal (seconds until the first token is due, and predicted slack), waits (why; blocks that were missing), admitted
    (tokens that need not be computed, tokens in all), chunk (first token, tokens, tokens of others in the step,
    requests of others), paused (why), preempted (why: swap or recompute; tokens, then the price of each way in
    seconds, -1 = not known yet; then 1 if it gave way to another tenant).
    """

    time: float
    what: str
    why: str = ""
    numbers: tuple[float, ...] = ()

    def without_others(self) -> "Event":
        """Return the event without its numbers of blocks, and of other requests' tokens."""
        return self._replace(numbers=self.numbers[: _NUM_OWN.get(self.what, len(self.numbers))])


class History(NamedTuple):
    """History of a request, up to its end or up to now. `num_more` events came after the ones kept."""

    events: tuple[Event, ...]
    seconds: dict[str, float]
    num_more: int = 0
    predicted_ttft: float | None = None

    @classmethod
    def read(cls, values: Sequence[Any]) -> "History":
        """Read a history from its JSON values."""
        events, seconds, *rest = values
        parsed = (Event(time, what, why, tuple(numbers)) for time, what, why, numbers in events)
        return cls(tuple(parsed), dict(seconds), *rest)


class OpenHistory:
    """History that grows. Its times are the scheduler's."""

    __slots__ = (
        "arrival_time", "events", "num_computed", "num_more", "phase", "predicted_ttft", "seconds", "since", "split",
    )  # fmt: skip

    def __init__(self, arrival_time: float, phase: str, predicted_ttft: float | None = None) -> None:
        self.arrival_time = arrival_time
        self.phase = phase
        self.since = arrival_time  # start of the current phase
        self.seconds: dict[str, float] = {}
        self.events: list[Event] = []
        self.num_more = 0
        self.num_computed = 0  # computed tokens at the last decision
        self.split = (0.0, 0.0)  # seconds of steps without and with prompts when it began to decode
        self.predicted_ttft = predicted_ttft

    def turn(self, phase: str, now: float) -> None:
        """Begin another phase."""
        self.spend(self.phase, now - self.since)
        self.phase, self.since = phase, now

    def spend(self, phase: str, seconds: float) -> None:
        """Add seconds to a phase."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def note(self, time: float, what: str, why: str = "", *numbers: float) -> None:
        """Append an event, or count it if there are MAX_EVENTS."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(Event(time - self.arrival_time, what, why, numbers))
        else:
            self.num_more += 1

    def copy(self) -> "OpenHistory":
        """Return a copy that grows independently."""
        result = OpenHistory(self.arrival_time, self.phase)
        for name in self.__slots__:
            setattr(result, name, getattr(self, name))
        result.seconds, result.events = dict(self.seconds), list(self.events)
        return result

    def closed(self) -> History:
        """Return this history as plain data."""
        return History(tuple(self.events), dict(self.seconds), self.num_more, self.predicted_ttft)
