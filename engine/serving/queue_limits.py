"""QueueLimits: limits of waiting requests and of their waiting time, and the time after which to retry."""

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from ..config import EngineConfig
from ..errors import QueueFullError
from ..language.workers.shares import most_of, sharer

_NUM_ENDS_KEPT = 64
_LEAST_S, _MOST_S = 1.0, 60.0  # bounds of retry_after_s


class Predictions(Protocol):
    """Predictions for the requests that are there."""

    def predicted_wait_s(self) -> float:
        """Return the seconds until a request that came now would get its first token."""

    def predicted_s_until_ended(self, num_requests: int) -> float:
        """Return the seconds until `num_requests` outputs have ended at the latest."""


class QueueLimits:
    """Limits `max_queue_size` and `max_queue_seconds` of a config, and the rate at which outputs ended."""

    def __init__(self, config: EngineConfig, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_size, self._max_seconds = config.max_queue_size, config.max_queue_seconds
        self._clock = clock
        self._end_times: deque[float] = deque(maxlen=_NUM_ENDS_KEPT)

    def note_end(self) -> None:
        """Note that an output has ended."""
        self._end_times.append(self._clock())

    def check(self, predictions: Predictions, *, num_waiting: int, num_new: int, num_own: Callable[[str], int]) -> None:
        """Raise QueueFullError like `check_size`, or if `num_new` outputs would wait too long."""
        self.check_size(predictions, num_waiting=num_waiting, num_new=num_new, num_own=num_own)
        if self._max_seconds is not None and (wait := predictions.predicted_wait_s()) > self._max_seconds:
            why = f"a first token is {wait:.1f} s away and --max-queue-seconds is {self._max_seconds:g}"
            raise _queue_full(why, wait - self._max_seconds)

    def check_size(
        self, predictions: Predictions, *, num_waiting: int, num_new: int, num_own: Callable[[str], int]
    ) -> None:
        """Raise QueueFullError if `num_new` outputs may not wait behind `num_waiting`. `num_own` counts a key's."""
        most, of_whom = self._max_size, "requests wait and the queue"
        if (owner := sharer()) and 2 * (num_waiting + num_new) > most:  # below that every share is larger
            num_all, num_waiting = num_waiting, num_own(owner)
            most = most_of(most, num_own=num_waiting, num_all=num_all, is_divided=True)
            of_whom = "requests of this key wait and its share of the queue"
        if num_waiting and num_waiting + num_new > most:
            seconds = self._seconds_until_room(predictions, num_waiting + num_new - most)
            raise _queue_full(f"{num_waiting} {of_whom} holds {most}", seconds)

    def _seconds_until_room(self, predictions: Predictions, num_outputs: int) -> float:
        """Return the seconds until `num_outputs` have ended, at the rate of the last ends; predict before two ends."""
        times = self._end_times
        if len(times) < 2 or times[-1] <= times[0]:
            return predictions.predicted_s_until_ended(num_outputs)
        return num_outputs * (self._clock() - times[0]) / len(times)


def _queue_full(why: str, seconds: float) -> QueueFullError:
    retry_after_s = min(_MOST_S, max(_LEAST_S, seconds))
    return QueueFullError(f"{why}; try again in {retry_after_s:.0f} s", retry_after_s=retry_after_s)
