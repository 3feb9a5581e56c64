"""Deadlines: requests whose time runs out, `timeout_ms` after their arrival or after `max_queue_ms` in the queue."""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from .request import Request

_FEW = 64  # too few to clean up


class _Deadline(NamedTuple):
    time: float
    tie: int  # unique, so that requests are never compared
    request: Request
    is_for_queue: bool  # applies only until the request is first scheduled


class Deadlines:
    """Heap of deadlines. Most requests end long before theirs, which may be a day away."""

    def __init__(self) -> None:
        self._heap: list[_Deadline] = []

    def add(self, request: Request) -> None:
        """Note the deadlines of a request that has just been queued."""
        for is_for_queue, milliseconds in enumerate((request.params.timeout_ms, request.params.max_queue_ms)):
            if milliseconds is not None:
                time, tie = request.arrival_time + milliseconds / 1000, 2 * request.arrival_order + is_for_queue
                heapq.heappush(self._heap, _Deadline(time, tie, request, bool(is_for_queue)))

    def expired(self, now: float) -> Iterator[Request]:
        """Remove deadlines that have passed, and yield their requests. A request may have ended, or come twice."""
        while self._heap and self._heap[0].time <= now:
            deadline = heapq.heappop(self._heap)
            if not deadline.is_for_queue or deadline.request.first_scheduled_time is None:
                yield deadline.request

    def forget_ended(self, num_unfinished: int) -> None:
        """Drop the deadlines of ended requests, once they are most of the heap."""
        if len(self._heap) > 4 * num_unfinished + _FEW:
            self._heap = [deadline for deadline in self._heap if not deadline.request.is_finished]
            heapq.heapify(self._heap)
