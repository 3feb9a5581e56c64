"""Turns of models: single cases, random worlds, and bugs that the worlds must find.

SPLITFUSE_TEST_SEEDS ("1000", or "17-17" for one seed) sets the number of worlds.
"""

import os
from typing import Any

import pytest
from planted_bug import Bugs, Method, plant, planted_by_name, run_until_caught
from turns_world import TurnsSettings, TurnsWorld
from world_settings import seeds

from splitfuse.server.extras.router.turns import READY, UNLOADED, ModelTurn, Plan, Turns

BUGS: Bugs = {}
SEEDS = seeds(asked) if (asked := os.environ.get("SPLITFUSE_TEST_SEEDS")) else range(150)


@pytest.mark.parametrize("seed", SEEDS)
def test_rules_hold_in_random_worlds(seed: int) -> None:
    TurnsWorld(TurnsSettings.random(seed)).run(200)


def turns_of(*names: str, places: int = 1, turn_s: float = 5.0, **fields: Any) -> Turns:
    return Turns([ModelTurn(name, **fields) for name in names], max_resident=places, turn_s=turn_s)


def do(turns: Turns, now: float) -> Plan:
    """Do what is planned, with loads and unloads that take no time."""
    plan = turns.plan(now)
    for ticket in plan.admit:
        turns.admit(ticket, now)
    for name in plan.unload:
        turns.begin_unload(name, now)
        turns.ended(name, now)
    for name in plan.load:
        turns.begin_load(name, now)
        turns.loaded(name, now)
    for name in plan.ask:
        turns.report_jobs(name, 0, now)
    turns.check()
    return plan


def serve(turns: Turns, ticket: int, name: str, now: float) -> None:
    """Have a request begin and end at once."""
    turns.arrive(ticket, name, now)
    for _ in range(6):
        if ticket in do(turns, now).admit:
            turns.leave(ticket, now)
            return
    raise AssertionError(f"{name} has no turn")


def test_the_least_recently_used_model_without_work_gives_its_place() -> None:
    turns = turns_of("a", "b", "c", places=2)
    serve(turns, 1, "a", 0.0)
    serve(turns, 2, "b", 1.0)
    serve(turns, 3, "a", 2.0)
    serve(turns, 4, "c", 3.0)
    assert {model.name for model in turns.models.values() if model.state == READY} == {"a", "c"}


def test_a_short_pause_of_a_client_gives_no_place_away() -> None:
    turns = turns_of("a", "b")
    serve(turns, 1, "a", 0.0)
    turns.arrive(2, "b", 0.1)
    for _ in range(3):
        plan = do(turns, 0.1)
    assert (turns.models["a"].state, plan.wake_at) == (READY, 0.2)
    serve(turns, 3, "a", 0.15)
    assert [ticket for _ in range(4) for ticket in do(turns, 0.35).admit] == [2]


def test_new_requests_queue_behind_a_model_that_has_waited_for_a_turn() -> None:
    turns = turns_of("a", "b", turn_s=5.0)
    turns.arrive(1, "a", 0.0)
    do(turns, 0.0)
    assert do(turns, 0.0).admit == [1]
    turns.arrive(2, "b", 1.0)
    turns.arrive(3, "a", 5.9)
    assert do(turns, 5.9).admit == [3]
    turns.arrive(4, "a", 6.0)
    assert do(turns, 6.0).admit == []  # b has waited for 5 s
    turns.leave(1, 7.0)
    do(turns, 7.0)
    assert turns.models["a"].state == READY  # an answer still runs
    turns.leave(3, 8.0)
    plans = [do(turns, 8.0) for _ in range(4)]
    assert [plan.admit for plan in plans if plan.admit] == [[2]]
    assert turns.models["a"].waiting == {4: 6.0}


def test_a_model_keeps_its_place_while_it_has_accepted_work() -> None:
    turns = turns_of("a", "b", idle_s=1.0)
    serve(turns, 1, "a", 0.0)
    turns.arrive(2, "b", 0.0)
    assert turns.plan(3.0).ask == ["a"]
    turns.report_jobs("a", 2, 3.0)
    plan = turns.plan(3.5)
    assert (plan.unload, plan.ask) == ([], ["a"])
    turns.ended("a", 4.0)  # killed: it owes the work, and so comes back after b
    assert do(turns, 4.0).load == ["b"]
    assert turns.models["a"].wanted_since == 4.0


def test_accepted_work_gives_way_at_the_turns_end_and_goes_on_later() -> None:
    turns = turns_of("a", "b", turn_s=5.0)
    serve(turns, 1, "a", 0.0)
    turns.report_jobs("a", 2, 0.5)
    turns.arrive(2, "b", 1.0)
    assert turns.plan(5.9).unload == []
    turns.report_jobs("a", 1, 6.0)
    assert do(turns, 6.0).unload == ["a"]
    assert do(turns, 6.0).load == ["b"]
    assert turns.models["a"].wanted_since == 6.0
    assert do(turns, 6.0).admit == [2]
    turns.leave(2, 6.1)
    assert [name for now in (6.1, 6.4, 6.5, 6.6) for name in do(turns, now).load] == ["a"]


def test_idle_and_dismissed_models_leave_and_pinned_ones_stay() -> None:
    turns = turns_of("a", "b", places=2, idle_s=3.0)
    turns.models["b"].is_pinned = True
    serve(turns, 1, "a", 0.0)
    serve(turns, 2, "b", 0.0)
    do(turns, 2.9)
    assert turns.plan(2.9).wake_at == 3.0
    for _ in range(2):
        do(turns, 3.0)
    assert [model.state for model in turns.models.values()] == [UNLOADED, READY]
    turns.dismiss("b")
    for _ in range(2):
        do(turns, 4.0)
    assert turns.models["b"].state == UNLOADED


def test_a_failed_load_is_tried_again_after_its_pause() -> None:
    turns = turns_of("a")
    turns.arrive(1, "a", 0.0)
    turns.begin_load("a", 0.0)
    turns.ended("a", 1.0, pause_s=2.0)
    plan = turns.plan(1.0)
    assert (plan.load, plan.wake_at) == ([], 3.0)
    assert turns.plan(3.0).load == ["a"]


@plant(BUGS, Turns, "_give_places")
def nobody_is_closed(right: Method, self: Turns, *step: Any) -> Any:
    right(self, *step)
    return set()


@plant(BUGS, Turns, "_give_places")
def the_newest_claim_is_first(right: Method, self: Turns, *step: Any) -> Any:
    models = self.models
    waiting = {name: dict(model.waiting) for name, model in models.items()}
    for model in models.values():
        if model.state == UNLOADED:
            model.waiting = {ticket: 1e6 - arrival for ticket, arrival in model.waiting.items()}
    closed = right(self, *step)
    for name, model in models.items():
        model.waiting = waiting[name]
    return closed


@plant(BUGS, Turns, "admit", where=lambda settings: settings.job_s > 0)
def no_answer_leaves_work(right: Method, self: Turns, ticket: int, now: float) -> None:
    right(self, ticket, now)
    self.models[self.name_of(ticket)].num_jobs = 0


@plant(BUGS, Turns, "ended", where=lambda settings: settings.num_kills > 0 and settings.job_s > 0)
def a_dead_process_owes_nothing(right: Method, self: Turns, name: str, now: float, **more: Any) -> None:
    right(self, name, now, **more)
    self.models[name].owed_since = None


@plant(BUGS, Turns, "leave")
def an_end_is_not_counted(right: Method, self: Turns, ticket: int, now: float) -> None:
    model = self._tickets.get(ticket)
    right(self, ticket, now)
    if model is not None and model.state == READY:
        model.num_running += 1


@plant(BUGS, Turns, "plan")
def nobody_wakes_up(right: Method, self: Turns, now: float) -> Plan:
    plan: Plan = right(self, now)
    plan.wake_at = float("inf")
    return plan


@plant(BUGS, Turns, "begin_unload")
def a_leaving_model_holds_no_place(right: Method, self: Turns, name: str, now: float) -> None:
    self.models[name].state = UNLOADED


@plant(BUGS, Turns, "loaded", where=lambda settings: settings.turn_s == 0)
def a_turn_may_serve_nobody(right: Method, self: Turns, name: str, now: float) -> None:
    right(self, name, now)
    self.models[name].since = float("-inf")


@plant(BUGS, Turns, "_unload_after", where=lambda settings: settings.job_s > 0)
def jobs_are_not_asked_for(right: Method, *args: Any, **_: Any) -> None:
    model, seconds, plan, now = args[-4:]
    if model.last_used + seconds <= now:
        plan.unload.append(model.name)


@plant(BUGS, Turns, "_unload_after", where=lambda settings: settings.job_s > 0)
def accepted_work_holds_its_place(right: Method, *args: Any, **_: Any) -> None:
    right(*args[-4:])


@plant(BUGS, Turns, "begin_unload", where=lambda settings: settings.job_s > 0)
def a_model_that_gives_way_owes_nothing(right: Method, self: Turns, name: str, now: float) -> None:
    right(self, name, now)
    self.models[name].owed_since = None


planted = planted_by_name(BUGS)


@pytest.mark.parametrize("planted", BUGS, indirect=True)
def test_worlds_find_planted_bugs(planted: Any) -> None:
    run_until_caught(planted, (TurnsWorld(TurnsSettings.random(seed)) for seed in range(400)), num_steps=200)
