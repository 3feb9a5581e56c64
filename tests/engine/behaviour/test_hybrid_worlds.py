"""Simulated worlds of a model with recurrent layers: no rule is broken, and planted bugs of states are caught.

SPLITFUSE_TEST_SEEDS and SPLITFUSE_TEST_STEPS set the length of the run, as in test_worlds.py.
"""

import os
from collections import Counter
from typing import Any

import pytest
import state_bugs
from hybrid_world import HybridWorld, OverlappedHybridWorld
from planted_bug import Bug, planted_by_name, run_until_caught
from world_settings import seeds

pytestmark = pytest.mark.usefixtures("quiet")
SEEDS = seeds(os.environ.get("SPLITFUSE_TEST_SEEDS", "6"))
STEPS = int(os.environ.get("SPLITFUSE_TEST_STEPS", "1000"))
MOST_SEEDS = 40
SHOWN = [name for name, bug in state_bugs.BUGS.items() if bug.shows_in_tokens]


@pytest.mark.parametrize("seed", SEEDS)
def test_no_rule_is_broken(seed: int) -> None:
    HybridWorld(seed).run(STEPS)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("seed", range(8))
def test_no_rule_is_broken_by_steps_in_flight(seed: int) -> None:
    OverlappedHybridWorld(seed).run(600)


@pytest.mark.thorough
def test_everything_happens_somewhere() -> None:
    seen: Counter[str] = Counter()
    for seed in range(24):
        world = HybridWorld(seed)
        world.run(400)
        seen += world.seen
        states: Any = world._core.blocks.companions[-1]
        seen["evicted checkpoints"] += states.slots.checkpoints.num_evictions
    swaps = ("swapped in", "states swapped in")
    for what in (*swaps, "prefix hit", "copied", "checkpoints", "replayed", "culprit", "evicted checkpoints"):
        assert seen[what] >= 10, f"{what} happened {seen[what]} times"


planted = planted_by_name(state_bugs.BUGS)


def message_of(bug: Bug, *, outputs_only: bool) -> str:
    worlds = (HybridWorld(seed, outputs_only=outputs_only) for seed in range(MOST_SEEDS))
    return run_until_caught(bug, worlds, num_steps=1000)


@pytest.mark.sampled(4)  # test_every_small_world.py finds all of them
@pytest.mark.parametrize("planted", state_bugs.BUGS, indirect=True)
def test_a_planted_bug_is_caught(planted: Bug) -> None:
    message_of(planted, outputs_only=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("planted", SHOWN, indirect=True)
def test_a_planted_bug_shows_as_a_wrong_token(planted: Bug) -> None:
    assert "the oracle" in message_of(planted, outputs_only=True)
