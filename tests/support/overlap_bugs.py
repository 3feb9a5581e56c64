"""Bugs of the overlap, planted one at a time: races between a step and the decisions made beside it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from planted_bug import Bugs, Method, plant

from splitfuse.engine.scheduler.async_scheduler import OverlappedScheduler
from splitfuse.engine.scheduler.scheduler import Scheduler
from splitfuse.engine.step_pipeline import OverlappedTurns

BUGS: Bugs = {}


@plant(BUGS, OverlappedScheduler, "_let_go")
def blocks_are_freed_while_a_step_uses_them(right: Method) -> Method:
    return Scheduler._let_go


@plant(BUGS, OverlappedScheduler, "_release_lingering")
def blocks_are_freed_a_step_early(right: Method) -> Method:
    def wrong(self: Any) -> None:
        under_way, self._under_way = self._under_way, []
        right(self)
        self._under_way = under_way

    return wrong


@plant(BUGS, OverlappedScheduler, "_release_lingering")
def blocks_linger_for_ever(right: Method) -> Method:
    return lambda self: None


@plant(BUGS, OverlappedScheduler, "_plan")
def somebody_gives_way_in_flight(right: Method) -> Method:
    return Scheduler._plan


@plant(BUGS, OverlappedScheduler, "_presumed")
def the_last_token_is_decided_twice(right: Method) -> Method:
    @contextmanager
    def wrong(self: Any) -> Iterator[None]:
        yield

    return wrong


@plant(BUGS, OverlappedScheduler, "_presumed")
def who_reaches_its_length_goes_on(right: Method) -> Method:
    @contextmanager
    def wrong(self: Any) -> Iterator[None]:
        with right(self):
            self.running = sorted([*self.running, *self._ending], key=self._order)
            self._ending = []
            yield

    return wrong


@plant(BUGS, OverlappedTurns, "_collect")
def what_ran_behind_a_failure_is_believed(right: Method) -> Method:
    def wrong(self: Any, flight: Any) -> Any:
        kept = [(each, each.pending) for each in self._flights if each is not flight]
        results = right(self, flight)
        for each, pending in kept:
            each.pending = pending
        return results

    return wrong
