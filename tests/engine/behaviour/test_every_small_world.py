"""Small worlds of the scheduler, visited whole: no order of events breaks a rule, and no request starves.

`make worlds-all SECONDS=600` visits larger ones. A failure prints its path as a test, which belongs below.
"""

import os
import random
import re
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from typing import Any

import draft_bugs
import memory_bugs
import overlap_bugs
import pytest
import schedule_bugs
import small_world_search
import small_world_settings
import state_bugs
import subtle_bugs
from small_world import SmallWorld
from small_world_search import Broken, Search
from small_world_settings import HYBRID, LARGE, WHOLE, WORLDS
from small_world_state import Memory, Snapshot

from splitfuse.engine.core.batch import Batch
from splitfuse.engine.core.block_manager import BlockManager
from splitfuse.engine.core.scheduler import Scheduler

pytestmark = pytest.mark.usefixtures("quiet")
BUGS = {**subtle_bugs.BUGS, **overlap_bugs.BUGS, **draft_bugs.BUGS, **memory_bugs.BUGS, **schedule_bugs.BUGS}
BUGS |= state_bugs.BUGS
OURS = ("splitfuse.engine.core", "splitfuse.engine.extras.hybrid", "small_world")  # modules whose objects have a state
# Planted bugs, with a world that shows each, and the number of actions of its shortest path.
FOUND = {
    "blocks_of_a_fork_are_freed_in_flight_after_a_swap": ("fork", 9),
    "only_the_oldest_step_uses_blocks": ("ahead", 7),
    "failure_frees_blocks_that_the_next_step_uses": ("ahead", 7),
    "deadline_frees_blocks_in_flight": ("deadlines ahead", 7),
    "tokens_behind_an_end_token_are_remembered": ("ahead", 8),
    "outputs_of_a_rerun_go_by_their_place": ("fork ahead", 13),
    "fork_trusts_a_step_in_flight": ("fork ahead", 6),
    "abort_of_a_swapped_request_leaks_host_blocks": ("swap", 8),
    "swap_in_forgets_the_shared_prefix": ("swap", 12),
    "swapped_request_was_not_preempted": ("weights", 7),
    "tokens_found_after_a_preemption_count_as_hits": ("weights", 9),
    "request_that_returns_is_last": ("priority", 5),
    "free_blocks_of_a_prefix_are_given_away": ("deadlines ahead", 15),
    "free_blocks_keep_what_old_weights_computed": ("weights", 5),
    "cached_tokens_of_a_prompt_get_no_logprobs": ("logprobs ahead", 8),
    "tenant_is_skipped_after_an_abort_in_flight": ("fair", 6),
    "cached_tokens_are_charged": ("fair", 5),
    "pause_saves_up_service": ("fair", 3),
    "stop_string_at_the_last_token_is_overlooked": ("recompute", 7),
    "queue_deadline_ends_a_preempted_request": ("deadlines", 10),
    "deadline_is_lost_while_a_token_is_in_flight": ("deadlines ahead", 7),
    "blocks_are_freed_a_step_early": ("fork ahead", 7),
    "a_request_in_flight_is_preempted": ("ahead", 9),
    "what_ran_behind_a_failure_is_believed": ("fork ahead", 10),
    "tokens_after_a_stop_string_are_kept": ("drafts", 5),
    "tokens_after_an_end_token_are_kept": ("drafts", 5),
    "wrong_drafts_count_as_computed": ("drafts", 5),
    "swap_in_goes_to_the_wrong_block": ("swap", 10),
    "copy_on_write_is_skipped": ("fork", 5),
    "weights_of_tenants_are_ignored": ("fair", 2),
    "state_is_freed_before_its_row_has_run": ("states", 7),
    "checkpoint_is_taken_one_token_late": ("states turns", 3),
    "rollback_keeps_a_drafted_state": ("states drafts", 8),
    "accepted_drafts_are_not_replayed": ("states drafts", 8),
    "blocks_are_found_without_a_state": ("states turns", 14),
    "state_of_an_ended_request_leaks": ("states", 3),
    "state_of_a_swapped_request_is_not_brought_back": ("states swap", 10),
    "state_comes_back_to_another_slot": ("states swap", 10),
    "host_slot_is_not_freed": ("states swap", 8),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", WHOLE)
def test_no_state_breaks_a_rule(name: str) -> None:
    visited = Search(WORLDS[name], name).run()
    print(f"{name}: {visited}")
    assert not visited.num_open
    assert visited.num_states > 300


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", HYBRID)
def test_no_state_of_a_hybrid_breaks_a_rule(name: str) -> None:
    test_no_state_breaks_a_rule(name)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LARGE)
def test_the_nearest_states_of_a_large_world_break_no_rule(name: str) -> None:
    visited = Search(LARGE[name], name).run(most_states=1500)
    assert visited.depth > 3


def test_the_same_states_are_visited_each_time() -> None:
    first, second = (Search(WHOLE["equal"]).run() for _ in range(2))
    assert (first.num_states, first.num_edges, first.depth) == (second.num_states, second.num_edges, second.depth)


def test_a_failure_is_a_test_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BlockManager, "forget", lambda self, request: None)
    with pytest.raises(Broken) as caught:
        Search(WHOLE["recompute"], "recompute").run()
    path = printed_test(caught.value)
    with pytest.raises(AssertionError) as again:
        path()
    assert f"AssertionError: {again.value}" == caught.value.fault
    monkeypatch.undo()
    path()


def printed_test(broken: Broken) -> Any:
    """Return the test that a failure has printed."""
    text, variables = str(broken), dict[str, Any](vars(small_world_search) | vars(small_world_settings))
    exec("if True:\n" + text[text.index("    def test_path") :], variables)
    return variables["test_path"]


def test_work_that_never_ends_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    right = Scheduler.update

    def wrong(self: Any, batch: Any, *results: Any) -> Any:
        progress = right(self, batch, *results)
        for row in batch.rows:
            if not row.needs_sampling and not row.request.is_finished:
                row.request.num_computed_tokens = row.start  # the chunk of a prompt is computed again and again
        return progress

    monkeypatch.setattr(Scheduler, "update", wrong)
    with pytest.raises(Broken, match="not all requests end") as caught:
        Search(replace(LARGE["decodes first"], events={})).run(most_states=400)
    assert caught.value.path == ["arrive a"]
    with pytest.raises(AssertionError, match="not all requests end"):
        printed_test(caught.value)()


@pytest.mark.parametrize("name", FOUND)
def test_a_planted_bug_is_found_with_its_shortest_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug, (world, num_actions) = BUGS[name], FOUND[name]
    monkeypatch.setattr(bug.owner, bug.name, bug.make(getattr(bug.owner, bug.name)))
    with pytest.raises(Broken) as caught:
        Search(WORLDS[world], world).run()
    print(caught.value)
    assert "only copies show it" not in caught.value.fault
    assert len(caught.value.path) == num_actions
    with pytest.raises(AssertionError):
        printed_test(caught.value)()


def test_every_subtle_bug_is_in_the_table() -> None:
    assert subtle_bugs.BUGS.keys() <= FOUND.keys()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", [*WHOLE, *HYBRID, "three", "all"])
def test_states_with_one_key_have_one_future(name: str) -> None:
    """Compare all that can happen in two states whose keys are equal, over states that are reached by several ways."""
    world, memory = WORLDS[name].open()
    futures, frontier = {memory.key(): None}, deque([memory.save()])
    checked: dict[Any, Any] = {}
    while frontier and len(futures) < int(os.environ.get("SPLITFUSE_TEST_STATES", "300")):
        snapshot = frontier.popleft()
        memory.restore(snapshot)
        for action in world.actions():
            memory.restore(snapshot)
            world.act(action)
            key, after = memory.key(), memory.save()
            if key not in futures:
                futures[key] = None
                frontier.append(after)
            future = _futures(memory, world, after)
            assert checked.setdefault(key, future) == future, "the key leaves out something that matters"


def _futures(memory: Memory, world: SmallWorld, snapshot: Snapshot) -> list[tuple[str, Any]]:
    """Return all actions, without the numbers of equal prompts, each with the key of the state after it."""
    memory.restore(snapshot)
    keys = []
    for action in world.actions():
        memory.restore(snapshot)
        world.act(action)
        keys.append((re.sub(r"\d+", "", action), memory.key()))
    return keys


@pytest.mark.parametrize("name", WORLDS)
def test_a_copy_forgets_nothing(name: str) -> None:
    """Compare every attribute of every object after other things have happened and the state was put back."""
    if "weights" in WORLDS[name].events:
        pytest.importorskip(
            "splitfuse.engine.extras.weight_updates.live_model", reason="with --core-alone it is absent"
        )
    for seed in range(8):
        rng = random.Random(seed)
        world = SmallWorld(WORLDS[name])
        memory = Memory(world)
        wander(world, rng, num_actions=5 * seed)
        snapshot, before = memory.save(), attributes(world)
        for _ in range(4):
            wander(world, rng, num_actions=40)
            memory.restore(snapshot)
            assert attributes(world) == before


def wander(world: SmallWorld, rng: random.Random, *, num_actions: int) -> None:
    for _ in range(num_actions):
        if not (actions := world.actions()):
            return
        world.act(rng.choice(actions))


def attributes(world: SmallWorld) -> dict[Any, Any]:
    """Return all attributes of all objects that a world reaches, but the counts that only order things."""
    found: dict[Any, Any] = {}
    for owner in _objects(world):
        for name in vars(owner) if hasattr(owner, "__dict__") else type(owner).__slots__:
            value = getattr(owner, name)
            if not isinstance(value, count):
                found[id(owner), type(owner).__name__, name] = _shallow(value)
    return found


def _objects(world: SmallWorld) -> Iterator[Any]:
    seen: dict[int, Any] = {}
    reached: list[Any] = [world]
    while reached:
        owner = reached.pop()
        if id(owner) in seen:
            continue
        seen[id(owner)] = owner
        if isinstance(owner, dict):
            reached += [*owner.keys(), *owner.values()]
        elif isinstance(owner, list | tuple | deque | set):
            reached += owner
        elif type(owner).__module__.startswith(OURS):
            if isinstance(owner, Batch | type) or type(owner).__name__ == "SamplingParams":
                continue
            names = vars(owner) if hasattr(owner, "__dict__") else getattr(type(owner), "__slots__", ())
            reached += [getattr(owner, name) for name in names]
            yield owner


def _shallow(value: Any) -> Any:
    if isinstance(value, OrderedDict | dict | Counter):
        return [(key, _shallow(item)) for key, item in value.items()]
    return [*map(_shallow, value)] if isinstance(value, list | deque | tuple | array) else value
