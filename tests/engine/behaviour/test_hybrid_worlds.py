"""Simulated worlds of a model with recurrent layers: no rule is broken. Small worlds catch the planted bugs of states.

SPLITFUSE_TEST_SEEDS and SPLITFUSE_TEST_STEPS set the length of the run, as in test_worlds.py.
"""

import os
from collections import Counter
from typing import Any

import pytest
from hybrid_world import HybridWorld, OverlappedHybridWorld
from world_settings import seeds

pytestmark = pytest.mark.usefixtures("quiet")
SEEDS = seeds(os.environ.get("SPLITFUSE_TEST_SEEDS", "6"))
STEPS = int(os.environ.get("SPLITFUSE_TEST_STEPS", "1000"))


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
