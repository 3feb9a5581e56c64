"""Bugs in the share and order of requests, the choice of preemptions, and the ends of requests."""

from dataclasses import replace
from typing import Any

from planted_bug import Bugs, Method, plant

from splitfuse.engine.core.batch import NO_OUTPUT, RowFailure, RowOutput
from splitfuse.engine.core.engine_core import EngineCore
from splitfuse.engine.core.fair_queue import Holdings, TokenCounters
from splitfuse.engine.core.planner import Planner
from splitfuse.engine.core.policies import Source
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.core.step_pipeline import IsolatingRunner

BUGS: Bugs = {}


# Budgets and promises.


@plant(BUGS, Planner, "plan")
def budget_is_off_by_one(right: Method, self: Any, queues: Any, *, max_tokens: Any, **more: Any) -> Any:
    return right(self, queues, max_tokens=max_tokens + 1, **more)


@plant(BUGS, Planner, "_num_tokens_for")
def chunks_have_no_limit(right: Method, self: Any, num_wanted: int, budget: Any) -> int:
    self._max_chunk = 2**31
    return int(right(self, num_wanted, budget))


@plant(BUGS, Planner, "_plan_waiting")
def one_too_many_joins(right: Method, self: Any, budget: Any, waiting: Any, **more: Any) -> None:
    self._max_num_seqs += 1
    right(self, budget, waiting, **more)
    self._max_num_seqs -= 1


@plant(BUGS, Planner, "_plan_waiting", where=lambda settings: settings.num_blocks >= 100)
def watermark_is_ignored(right: Method, self: Any, budget: Any, waiting: Any, **more: Any) -> None:
    self._watermark = 0
    right(self, budget, waiting, **more)


@plant(BUGS, Planner, "_plan_waiting", where=lambda settings: settings.config.long_prefill_token_threshold > 0)
def promised_blocks_are_given_away(right: Method, self: Any, budget: Any, waiting: Any, **more: Any) -> None:
    budget.promised_blocks = 0
    right(self, budget, waiting, **more)


@plant(BUGS, Planner, "_plan_waiting")
def no_request_joins_two(right: Method, self: Any, budget: Any, waiting: Any, **more: Any) -> Any:
    return None if len(budget.queues.running) >= 2 else right(self, budget, waiting, **more)


# Order and preemption.


@plant(BUGS, Scheduler, "__init__")
def priority_is_inverted(right: Method, self: Any, config: Any, *more: Any, **options: Any) -> None:
    right(self, config, *more, **options)
    if config.scheduling_policy == "priority":
        self._order = lambda request: (-request.params.priority, request.arrival_order)


@plant(BUGS, Planner, "__init__")
def decodes_wait_for_prompts(right: Method, self: Any, *config: Any, **options: Any) -> None:
    right(self, *config, **options)
    if self._policy.name == "splitfuse":
        self._policy = replace(self._policy, rounds=((Source.CHUNKS, Source.WAITING, Source.DECODES),))


@plant(BUGS, Planner, "__init__")
def running_batch_is_joined(right: Method, self: Any, *config: Any, **options: Any) -> None:
    right(self, *config, **options)
    self._policy = replace(self._policy, admits=lambda running: True)


@plant(BUGS, TokenCounters, "_charge", where=lambda settings: settings.config.scheduling_policy == "fair")
def service_is_not_charged(right: Method, self: Any, tenant: Any, amount: Any) -> Any:
    return None


@plant(BUGS, TokenCounters, "_charge", where=lambda settings: bool(settings.config.tenant_weights))
def weights_of_tenants_are_ignored(right: Method, self: Any, tenant: str, amount: float) -> None:
    right(self, tenant, amount * self._weights.get(tenant, 1.0))


def is_fair(settings: Any) -> bool:
    """True if worlds with these settings can show a bug of the shares of places."""
    return settings.config.scheduling_policy == "fair" and len(settings.tenants) > 1


@plant(BUGS, TokenCounters, "most_running", where=is_fair)
def places_are_taken_back_at_once(right: Method, self: Any, tenant: Any) -> Any:
    return 2**31


@plant(BUGS, TokenCounters, "victims", where=is_fair)
def none_gives_way_to_another_tenant(right: Method, self: Any, *arguments: Any, **more: Any) -> Any:
    return []


@plant(BUGS, Holdings, "take_latest", where=is_fair)
def earliest_of_a_tenant_gives_way(right: Method, self: Any, tenants: Any, *, least: float) -> Any:
    victim = right(self, tenants, least=least)
    if victim is not None:
        self.tenants[victim.tenant].append(victim)
        victim = min(self.tenants[victim.tenant], key=lambda request: request.arrival_order)
        self.tenants[victim.tenant].remove(victim)
    return victim


@plant(BUGS, Holdings, "take_latest", where=is_fair)
def smallest_tenant_gives_way(right: Method, self: Any, tenants: Any, *, least: Any) -> Any:
    return right(self, [min(tenants, key=self.share)] if tenants else [], least=0.0)


@plant(BUGS, Holdings, "__init__", where=is_fair)
def requests_are_counted_not_sequences(right: Method, self: Any, running: Any, **more: Any) -> None:
    right(self, {request.request_id: request for request in running}.values(), **more)


@plant(BUGS, Planner, "_most_running", where=lambda settings: settings.config.max_seqs_per_key is not None)
def limit_per_key_is_off_by_one(right: Method, self: Any, tenant: Any) -> Any:
    return right(self, tenant) + 1


@plant(BUGS, Planner, "_plan_preemption")
def first_gives_way(right: Method, self: Any, budget: Any) -> None:
    budget.queues.running.reverse()
    self._counters, kept = None, self._counters
    right(self, budget)
    self._counters = kept
    budget.queues.running.reverse()


@plant(BUGS, Planner, "_plan_preemption")
def one_gives_way_again_and_again(right: Method, self: Any, budget: Any) -> None:
    self._costs.max_preemptions = 2**31
    right(self, budget)


@plant(BUGS, Planner, "_plan_preemption")
def two_give_way_for_one(right: Method, self: Any, budget: Any) -> None:
    right(self, budget)
    if len(budget.queues.running) > len(budget.plan.preempted):
        right(self, budget)


@plant(BUGS, Planner, "_waits_for_its_parent")
def parent_that_has_gone_is_waited_for(right: Method, self: Any, budget: Any, request: Any) -> bool:
    parent = request.parent
    return parent is not None and parent.num_computed_tokens < request.num_prompt_tokens


# Ends and failures.


@plant(BUGS, Scheduler, "finish")
def abort_in_flight_is_lost(right: Method, self: Any, request: Any, **more: Any) -> bool:
    return not self._is_in_flight(request) and bool(right(self, request, **more))


@plant(BUGS, EngineCore, "abort")
def only_the_first_output_is_aborted(right: Method, self: Any, request_id: str) -> Any:
    requests = self._requests[request_id]
    self._requests[request_id] = requests[:1]
    deltas = right(self, request_id)
    self._requests[request_id] = requests
    return deltas


@plant(BUGS, Scheduler, "expire")
def deadline_is_ignored(right: Method, self: Any, now: Any) -> Any:
    return []


@plant(BUGS, Scheduler, "expire")
def queue_deadline_ends_who_has_begun(right: Method, self: Any, now: float) -> Any:
    self._deadlines._heap = [deadline._replace(is_for_queue=False) for deadline in self._deadlines._heap]
    return right(self, now)


@plant(BUGS, Scheduler, "update")
def failed_row_counts_as_computed(right: Method, self: Any, batch: Any, results: Any, now: float) -> Any:
    return right(self, batch, [NO_OUTPUT if output.failure else output for output in results], now)


@plant(BUGS, Scheduler, "update", shows_in_tokens=True)
def two_rows_get_each_others_tokens(right: Method, self: Any, batch: Any, results: Any, now: float) -> Any:
    if all(output.token_ids for output in results[:2]):
        results = [*reversed(results[:2]), *results[2:]]
    return right(self, batch, results, now)


@plant(BUGS, IsolatingRunner, "run")
def one_culprit_fails_all(right: Method, self: Any, batch: Any) -> Any:
    outputs = right(self, batch)
    failures = [output for output in outputs if output.failure is not None]
    return failures[:1] * len(outputs) if failures else outputs


@plant(BUGS, IsolatingRunner, "_run_isolated")
def a_row_is_tried_once(right: Method, self: Any, batch: Any, *, is_last_try: bool = False) -> Any:
    return [RowOutput(failure=RowFailure("tried once"))] if is_last_try else right(self, batch)


@plant(BUGS, Scheduler, "_append")
def one_token_too_many(right: Method, self: Any, request: Any, *token: Any) -> None:
    request.max_num_tokens += 1
    right(self, request, *token)
    request.max_num_tokens -= 1


@plant(BUGS, Scheduler, "_append")
def end_token_is_ignored(right: Method, self: Any, request: Any, *token: Any) -> None:
    request.stop_token_ids, kept = frozenset(), request.stop_token_ids
    right(self, request, *token)
    request.stop_token_ids = kept
