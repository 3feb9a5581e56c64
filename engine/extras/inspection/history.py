"""What a request waited for and was given, as it happened. Plain data; `scheduler/histories.py` writes it.

From its arrival on a request is in one phase at a time, so the seconds of its phases add up to its life:

    queue.WHY        not admitted yet. WHY: step (until the next one was decided), budget, sequences, blocks, policy,
                     preemption, interactive, parent, fairness, priority, unknown (longer ago than is kept)
    interrupted      another process had it
    prefill          its prompt is being computed; recompute: again, after a preemption
    paused.WHY       it runs, and steps go by without it. WHY: budget, policy
    decode.alone     steps that computed no prompt; decode.beside_prompts; decode.between_steps
    preempted.WHY    as queue, after it has run
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

MAX_EVENTS = 64  # a usual request has 3 to 10; 128,000 tokens in chunks of 512 would have 250


class Event(NamedTuple):
    """`time` in seconds since arrival. What the numbers are depends on `what`:

    waits (why; blocks that were missing), admitted (tokens that need not be computed, tokens in all), chunk (first
    token, tokens, tokens of others in the step, requests of others), paused (why), preempted (why: swap or recompute;
    tokens, then the price of each way in seconds, -1 = not known yet).
    """

    time: float
    what: str
    why: str = ""
    numbers: tuple[float, ...] = ()


class History(NamedTuple):
    """A request's, up to its end or up to now. `num_more` events came after those that are kept."""

    events: tuple[Event, ...]
    seconds: dict[str, float]
    num_more: int = 0
    predicted_ttft: float | None = None

    @classmethod
    def read(cls, values: Sequence[Any]) -> "History":
        """As JSON gives it back."""
        events, seconds, *rest = values
        made = (Event(time, what, why, tuple(numbers)) for time, what, why, numbers in events)
        return cls(tuple(made), dict(seconds), *rest)


class OpenHistory:
    """One that grows. Its times are the scheduler's."""

    __slots__ = (
        "arrival_time", "events", "num_computed", "num_more", "phase", "predicted_ttft", "seconds", "since", "split",
    )  # fmt: skip

    def __init__(self, arrival_time: float, phase: str, predicted_ttft: float | None = None) -> None:
        self.arrival_time = arrival_time
        self.phase = phase
        self.since = arrival_time  # when this phase began
        self.seconds: dict[str, float] = {}
        self.events: list[Event] = []
        self.num_more = 0
        self.num_computed = 0  # tokens, as of the last decision
        self.split = (0.0, 0.0)  # what the steps had taken when it began to decode
        self.predicted_ttft = predicted_ttft

    def turn(self, phase: str, now: float) -> None:
        """Another phase begins."""
        self.spend(self.phase, now - self.since)
        self.phase, self.since = phase, now

    def spend(self, phase: str, seconds: float) -> None:
        """Seconds that were a phase's."""
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds

    def note(self, time: float, what: str, why: str = "", *numbers: float) -> None:
        """Something happened."""
        if len(self.events) < MAX_EVENTS:
            self.events.append(Event(time - self.arrival_time, what, why, numbers))
        else:
            self.num_more += 1

    def copy(self) -> "OpenHistory":
        """One that grows on its own."""
        made = OpenHistory(self.arrival_time, self.phase)
        for name in self.__slots__:
            setattr(made, name, getattr(self, name))
        made.seconds, made.events = dict(self.seconds), list(self.events)
        return made

    def closed(self) -> History:
        """As plain data."""
        return History(tuple(self.events), dict(self.seconds), self.num_more, self.predicted_ttft)
