"""Deterministic simulation: each seed is a world of its own, in which no rule is ever broken, whatever happens.

SPLITFUSE_TEST_SEEDS ("1000", or "17-17" for one seed) and SPLITFUSE_TEST_STEPS set the length of the run.
"""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from world import World
from world_settings import Recording, can_be_recorded, seeds

from splitfuse.engine.core.policies import BATCHING_POLICIES, QUEUE_ORDERS

pytestmark = pytest.mark.usefixtures("quiet")
# Some planted bugs and faults are seen by one of these worlds alone (test_planted_bugs.py, planted_faults.json).
RARE = (6, 7, 9, 11, 13, 18, 20, 27, 28)
SEEDS = seeds(asked) if (asked := os.environ.get("SPLITFUSE_TEST_SEEDS")) else [*range(3), *RARE]
STEPS = int(os.environ.get("SPLITFUSE_TEST_STEPS", "2000"))


@pytest.mark.parametrize("seed", SEEDS)
def test_no_rule_is_broken(seed: int) -> None:
    World(seed).run(STEPS)


@pytest.mark.slow
def test_a_seed_lives_the_same_life_in_every_process() -> None:
    """Check that nothing depends on the order of a set or on addresses, so a failing seed can be repeated."""
    program = "from world import World; w = World(4); w.run(500); print(w.fingerprint, sorted(w.seen.items()))"
    lives = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    here = World(4)
    here.run(500)
    assert lives == [f"{here.fingerprint} {sorted(here.seen.items())}\n"] * 2


@pytest.mark.thorough
def test_everything_happens_somewhere() -> None:
    seen: Counter[str] = Counter()
    settings: Counter[object] = Counter()
    for seed in range(30):
        world = World(seed)
        world.run(500)
        seen += world.seen
        config = world.settings.config
        settings.update((config.batching_policy, config.scheduling_policy, config.preemption_mode, config.block_size))
        settings.update({"weak hash": world.settings.hash_is_weak, "no cache": not config.enable_prefix_caching})
        settings.update({"no swap": not world.settings.num_host_blocks, "large pool": world.settings.num_blocks >= 100})
    events = ("abort", "abort in flight", "mass abort", "clock jump", "culprit", "not finite", "pass raises")
    drafts = ("drafts", "accepted drafts")
    moves = ("swapped out", "swapped in", "copied", "recompute", "swap", "prefix hit", "bad slot in block", "n > 1")
    endings = ("length", "stop", "abort", "timeout", "error")
    for what in (*events, *drafts, *moves, *(f"ends by {reason}" for reason in endings)):
        assert seen[what] >= 10, f"{what} happened {seen[what]} times"
    kinds = (*BATCHING_POLICIES, *QUEUE_ORDERS, "auto", "recompute", "swap", 1, 2, 4, 8, 16)
    for kind in (*kinds, "weak hash", "no cache", "no swap", "large pool"):
        assert settings[kind] > 0, f"no world has {kind}"


@pytest.mark.sampled(3)
@pytest.mark.parametrize("seed", [*filter(can_be_recorded, range(20))])
def test_a_recorded_world_replays_alike(seed: int, tmp_path: Path) -> None:
    recording, path = Recording(), tmp_path / "world.jsonl"
    World(seed, recording=recording).run(300)
    path.write_text(recording.getvalue())
    from splitfuse.engine.extras.simulation.replay import replay  # absent with --core-alone

    replayed = replay(path)
    assert replayed.difference is None, replayed.difference
    assert replayed.num_steps > 200
