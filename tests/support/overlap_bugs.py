"""Bugs of two steps in flight, planted one at a time: races between a step and the decisions made meanwhile."""

from collections import deque
from typing import Any

from planted_bug import Bugs, Method, plant

from splitfuse.engine.core.batch import Batch
from splitfuse.engine.core.planner import Planner
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.core.step_pipeline import StepPipeline

BUGS: Bugs = {}


@plant(BUGS, Scheduler, "_is_in_flight")
def blocks_are_freed_while_a_step_uses_them(right: Method, self: Any, request: Any) -> Any:
    return False


@plant(BUGS, Scheduler, "_release_finished")
def blocks_are_freed_a_step_early(right: Method, self: Any) -> None:
    in_flight, self._in_flight = self._in_flight, deque()
    right(self)
    self._in_flight = in_flight


@plant(BUGS, Scheduler, "_release_finished")
def blocks_linger_forever(right: Method, self: Any) -> Any:
    return None


@plant(BUGS, Planner, "_depends_on_results")
def a_request_in_flight_is_preempted(right: Method, self: Any, budget: Any) -> Any:
    return False


@plant(BUGS, Scheduler, "_rows")
def the_last_token_is_decided_twice(right: Method, self: Any, plan: Any) -> Any:
    rows = right(self, plan)
    for row in rows:
        row.request.num_computed_tokens -= row.needs_sampling
    return rows


@plant(BUGS, Scheduler, "_continuing")
def a_request_goes_on_beyond_its_length(right: Method, self: Any) -> Any:
    return self.running


@plant(BUGS, StepPipeline, "_collect")
def what_ran_behind_a_failure_is_believed(right: Method, self: Any, step: Any) -> Any:
    kept = [(other, other.state) for other in self._steps if other is not step]
    outputs = right(self, step)
    for each, state in kept:
        each.state = state
    return outputs


@plant(BUGS, Batch, "subset", shows_in_tokens=True)
def blocks_are_moved_again_after_a_failed_launch(right: Method, self: Any, rows: Any) -> Any:
    return Batch(self.step, rows, self.moves, self.needs_host)
