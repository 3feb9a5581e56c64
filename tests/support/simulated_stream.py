"""SimulatedStream: a device that does its work in order, but later, at moments that a seed chooses.

Work is a closure over host and device memory: it reads the values of the moment when it runs. So a buffer written
again too early, or results read before their event, show as wrong numbers.
"""

import random
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext


class SimulatedEvent:
    """Event that happens once all work before it is done."""

    def __init__(self, stream: "SimulatedStream", num_before: int) -> None:
        self._stream = stream
        self._num_before = num_before

    def wait(self) -> None:
        self._stream.run_until(self._num_before)


class SimulatedStream:
    """Stream like that of `engine.device`. `laziness`: the probability that the device stops before its next work."""

    def __init__(self, rng: random.Random, *, laziness: float = 0.5) -> None:
        self._rng = rng
        self._laziness = laziness
        self._queue: deque[Callable[[], None]] = deque()
        self._num_done = 0
        self.context: Callable[[], AbstractContextManager[object]] = nullcontext  # in which work is done

    @property
    def num_queued(self) -> int:
        return len(self._queue)

    def run(self, work: Callable[[], None]) -> None:
        """Queue work."""
        self.drift()
        self._queue.append(work)
        self.drift()

    def record(self) -> SimulatedEvent:
        """Return the event of all the work queued so far."""
        event = SimulatedEvent(self, self._num_done + len(self._queue))
        self.drift()
        return event

    def drift(self) -> None:
        """Let time go by: the device does some of its work, or none, or all."""
        while self._queue and self._rng.random() >= self._laziness:
            self._do_next()

    def run_until(self, num_done: int) -> None:
        while self._num_done < num_done:
            self._do_next()

    def synchronize(self) -> None:
        """Do all queued work."""
        self.run_until(self._num_done + len(self._queue))

    def _do_next(self) -> None:
        self._num_done += 1
        with self.context():
            self._queue.popleft()()
