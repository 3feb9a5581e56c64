"""Bugs that show only after several events in one order. A bug keeps no state of its own, so copies have it, too."""

from collections import deque
from typing import Any

from planted_bug import Bugs, Method, plant

from splitfuse.engine.core.batch import NO_OUTPUT
from splitfuse.engine.core.block_manager import BlockManager
from splitfuse.engine.core.deadlines import Deadlines
from splitfuse.engine.core.fair_queue import TokenCounters
from splitfuse.engine.core.planner import Planner
from splitfuse.engine.core.prefix_cache import PrefixCache
from splitfuse.engine.core.request import Request, Status
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.core.step_pipeline import StepPipeline, StepState

BUGS: Bugs = {}


# Steps in flight.


@plant(BUGS, Scheduler, "_is_in_flight")
def blocks_of_a_fork_are_freed_in_flight_after_a_swap(right: Method, self: Any, request: Any) -> Any:
    return (request.parent is None or not request.num_preemptions) and right(self, request)


@plant(BUGS, Scheduler, "_is_in_flight")
def only_the_oldest_step_uses_blocks(right: Method, self: Any, request: Any) -> Any:
    return any(row.request is request for batch in [*self._in_flight][:1] for row in batch.rows)


def _frees_blocks_in_flight(right: Method, self: Any, request: Any, *, reason: str, ends_by: str, **more: Any) -> bool:
    in_flight = self._in_flight
    self._in_flight = deque() if reason == ends_by else in_flight
    has_ended = right(self, request, reason=reason, **more)
    self._in_flight = in_flight
    return bool(has_ended)


@plant(BUGS, Scheduler, "_finish")
def failure_frees_blocks_that_the_next_step_uses(right: Method, self: Any, request: Any, **more: Any) -> bool:
    return _frees_blocks_in_flight(right, self, request, ends_by="error", **more)


@plant(BUGS, Scheduler, "_finish")
def deadline_frees_blocks_in_flight(right: Method, self: Any, request: Any, **more: Any) -> bool:
    return _frees_blocks_in_flight(right, self, request, ends_by="timeout", **more)


@plant(BUGS, Scheduler, "update")
def tokens_behind_an_end_token_are_remembered(right: Method, self: Any, batch: Any, *results: Any) -> Any:
    for row in batch.rows:
        if row.request.is_finished:
            self.blocks.remember(row.request, row.start, min(row.end, row.request.num_tokens))
    return right(self, batch, *results)


@plant(BUGS, StepPipeline, "_collect")
def outputs_of_a_rerun_go_by_their_place(right: Method, self: Any, step: Any) -> Any:
    if step.state is not StepState.MUST_RERUN:
        return right(self, step)
    rows = [row for row in step.to_run.rows if not row.request.is_finished]
    outputs = self._runner.run(step.to_run.subset(rows))
    return [*outputs, *[NO_OUTPUT] * (len(step.to_run.rows) - len(rows))]


@plant(BUGS, Planner, "_waits_for_its_parent")
def fork_trusts_a_step_in_flight(right: Method, self: Any, budget: Any, request: Any) -> bool:
    parent = request.parent
    is_computed = parent is not None and parent.num_computed_tokens >= request.num_prompt_tokens
    return not is_computed and bool(right(self, budget, request))


# Preemption and swapping.


@plant(BUGS, BlockManager, "release")
def abort_of_a_swapped_request_leaks_host_blocks(right: Method, self: Any, request: Any) -> None:
    if request.status is Status.PREEMPTED:
        request.host_block_table.clear()
    right(self, request)


@plant(BUGS, BlockManager, "restore")
def swap_in_forgets_the_shared_prefix(right: Method, self: Any, request: Any, prefix: Any) -> None:
    on_host, num_before = request.host_block_table[:], len(self._moves.swap_in)
    right(self, request, prefix)
    own = self._moves.swap_in[num_before:]
    self._moves.swap_in[num_before:] = [(start, to) for start, (_, to) in zip(on_host, own, strict=False)]


@plant(BUGS, Scheduler, "preempt")
def swapped_request_was_not_preempted(right: Method, self: Any, request: Any, *, is_swapped: bool) -> None:
    right(self, request, is_swapped=is_swapped)
    request.num_preemptions -= is_swapped


@plant(BUGS, BlockManager, "admit")
def tokens_found_after_a_preemption_count_as_hits(right: Method, self: Any, request: Any, prefix: Any) -> None:
    request.num_preemptions, kept = 0, request.num_preemptions
    right(self, request, prefix)
    request.num_preemptions = kept


@plant(BUGS, Scheduler, "_admit")
def request_that_returns_is_last(right: Method, self: Any, request: Any, *more: Any) -> None:
    right(self, request, *more)
    self.running.sort(key=lambda other: other is request)


# The prefix cache.


@plant(BUGS, BlockManager, "taken_by")
def free_blocks_of_a_prefix_are_given_away(right: Method, self: Any, prefix: Any) -> Any:
    return set()


@plant(BUGS, PrefixCache, "forget")
def free_blocks_keep_what_old_weights_computed(right: Method, self: Any, block: int) -> None:
    if not any(block in holding.free for holding in self.shares._holdings.values()):
        right(self, block)


@plant(BUGS, Request, "num_skippable_tokens")
def cached_tokens_of_a_prompt_get_no_logprobs(right: Method, self: Any) -> Any:
    return self.num_tokens - 1


# Tenants and ends.


@plant(BUGS, Scheduler, "_finish")
def tenant_is_skipped_after_an_abort_in_flight(
    right: Method, self: Any, request: Any, *, reason: str, **more: Any
) -> bool:
    if self._counters is not None and reason == "abort" and self._is_in_flight(request):
        self._counters._ceilings[request.tenant] = (0, self._counters._num_steps + 1000)
    return bool(right(self, request, reason=reason, **more))


@plant(BUGS, TokenCounters, "admitted")
def cached_tokens_are_charged(right: Method, self: Any, request: Any, num_computed: Any) -> Any:
    return right(self, request, 0)


@plant(BUGS, TokenCounters, "joined")
def pause_saves_up_service(right: Method, self: Any, tenant: Any, waiting: Any) -> Any:
    return self._charged.setdefault(tenant, 0.0) and None


@plant(BUGS, Scheduler, "finish")
def stop_string_at_the_last_token_is_overlooked(right: Method, self: Any, request: Any, **more: Any) -> Any:
    return not request.is_finished and right(self, request, **more)


@plant(BUGS, Deadlines, "expired")
def queue_deadline_ends_a_preempted_request(right: Method, self: Any, now: float) -> Any:
    for deadline in [deadline for deadline in self._heap if deadline.time <= now and deadline.is_for_queue]:
        if deadline.request.status is Status.PREEMPTED:
            yield deadline.request
    yield from right(self, now)


@plant(BUGS, Deadlines, "expired")
def deadline_is_lost_while_a_token_is_in_flight(right: Method, self: Any, now: Any) -> Any:
    return (request for request in right(self, now) if not request.num_output_placeholders)
