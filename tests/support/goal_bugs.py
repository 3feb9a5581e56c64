"""Bugs in the pacer: wrong clocks, places of others, requests that are kept."""

from typing import Any

from planted_bug import Bugs, Method, plant

from splitfuse.engine.extras.deadlines.pacer import DeadlinePacer

BUGS: Bugs = {}


def is_fcfs(settings: Any) -> bool:
    return settings.config.scheduling_policy == "fcfs" and settings.config.batching_policy == "splitfuse"


@plant(BUGS, DeadlinePacer, "_jobs", where=is_fcfs)
def slack_is_of_the_wrong_clock(right: Method, self: Any, *step: Any) -> Any:
    return [job._replace(due=job.due - job.request.arrival_time) for job in right(self, *step)]


@plant(BUGS, DeadlinePacer, "_order", where=lambda settings: settings.config.scheduling_policy != "fcfs")
def urgent_requests_take_places_of_others(right: Method, self: Any, *requests: Any) -> Any:
    group, self._group = self._group, None
    order = right(self, *requests)
    self._group = group
    return order


@plant(BUGS, DeadlinePacer, "_end")
def ended_requests_are_kept(right: Method, self: Any, request: Any) -> Any:
    return None


@plant(BUGS, DeadlinePacer, "_order", where=is_fcfs)
def late_prompts_go_first(right: Method, self: Any, prompts: Any, on_time: Any) -> Any:
    return [*(r for r in prompts if r not in on_time), *on_time] if on_time else ()
