"""Activity: whether steps run, so that work beside them takes a small share of the time, and all of it else."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

# Share of the time that work beside steps may take. Two cores, so about half of it reaches the steps.
_SHARE = 0.01
_IDLE_S = 0.1  # no step for so long: idle. Between two steps of one load pass a millisecond or two.
_NAP_S = 0.05


class Activity:
    """Clock of the steps, for one thread of work beside them."""

    def __init__(self) -> None:
        self._num_running = 0
        self._last_end = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Note a step."""
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1
            self._last_end = time.monotonic()

    @property
    def is_idle(self) -> bool:
        """True if no step runs, and none has just ended."""
        return not self._num_running and time.monotonic() - self._last_end > _IDLE_S

    def rest(self, worked_s: float, stop: threading.Event) -> None:
        """Wait after this much work, until its share is small again, no step runs, or `stop` is set."""
        end = time.monotonic() + worked_s / _SHARE
        while not self.is_idle and (left := end - time.monotonic()) > 0 and not stop.is_set():
            stop.wait(min(left, _NAP_S))
