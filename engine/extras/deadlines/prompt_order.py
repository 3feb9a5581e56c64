"""Order of prompts: as many first tokens in time as possible, and no request overtaken for ever."""

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import NamedTuple

from ...core.request import Request


class Job(NamedTuple):
    """Prompt with a goal: the time at which its first token is due, and the seconds that its computation takes."""

    due: float
    seconds: float
    request: Request


def on_time(jobs: Iterable[Job], now: float) -> list[Job]:
    """Return the largest set of jobs that all end in time if they run one after the other, in the order to run them.

    Moore 1968, "An n job, one machine sequencing algorithm for minimizing the number of late jobs": by due time, and
    whenever one would be late the longest so far goes.
    """
    kept: dict[int, Job] = {}
    longest: list[tuple[float, int]] = []
    ties, end = count(), now
    for job in sorted(jobs, key=lambda job: (job.due, job.request.arrival_order)):
        number = next(ties)
        kept[number] = job
        heapq.heappush(longest, (-job.seconds, -number))
        end += job.seconds
        if end > job.due:
            seconds, number = heapq.heappop(longest)
            del kept[-number]
            end += seconds
    return list(kept.values())


def within_groups(
    order: Sequence[Request], places: Sequence[Request], group_of: Callable[[Request], Hashable]
) -> list[Request]:
    """Return `places` with the requests of each group in their order of `order`: no group takes another's place."""
    queues: dict[Hashable, list[Request]] = {}
    for request in reversed(order):
        queues.setdefault(group_of(request), []).append(request)
    return [queues[group_of(request)].pop() for request in places]


class FairShare:
    """Share of the prompt tokens that requests without a goal, or too late for theirs, get while others have goals.

    When it has fallen behind, the first of them in queue order goes before all others, until it gets tokens: so it is
    not overtaken for ever, even if it lacks blocks or a sequence.
    """

    def __init__(self, share: float, *, most: int) -> None:
        """`most`: tokens by which the share may be behind or ahead."""
        self._share, self._most = share, most
        self._num_behind = 0.0  # tokens

    @property
    def is_behind(self) -> bool:
        """True if the next tokens are for requests without a goal."""
        return self._num_behind > 0

    def computed(self, num_tokens: int, num_without_goal: int) -> None:
        """Note the prompt tokens of a step, and how many of them belong to requests without a goal."""
        behind = self._num_behind + self._share * num_tokens - num_without_goal
        self._num_behind = max(-self._most, min(self._most, behind))
