"""Worlds that run a step ahead of their results, on a device that delays its work at random.

SPLITFUSE_TEST_OVERLAPPED_SEEDS sets the number of worlds.
"""

import os
from collections import Counter
from pathlib import Path

import overlap_bugs
import pytest
from overlapped_world import OverlappedWorld
from planted_bug import Bug, planted_by_name
from world_settings import Recording, can_be_recorded

pytestmark = [pytest.mark.sampled(3), pytest.mark.usefixtures("quiet")]

NUM_SEEDS = int(os.environ.get("SPLITFUSE_TEST_OVERLAPPED_SEEDS", "12"))
STEPS = 600
MOST_SEEDS = 60


def test_no_rule_is_broken_and_every_token_is_the_oracles() -> None:
    seen: Counter[str] = Counter()
    seen_with_drafts: Counter[str] = Counter()
    for seed in range(NUM_SEEDS):
        world = OverlappedWorld(seed)
        world.run(400)
        seen += world.seen
        if world.drafts:
            seen_with_drafts += world.seen
    assert seen["ahead"] > seen["alone"], "most steps are decided while another one runs"
    for what in ("ahead", "drafts", "accepted drafts"):
        assert seen_with_drafts[what] > 100, f"{what} beside each other"
    events = ("abort", "mass abort", "culprit", "not finite", "pass raises", "n > 1", "clock jump", "prefix hit")
    moves = ("swapped out", "swapped in", "copied", "recompute", "swap")
    endings = ("length", "stop", "abort", "timeout", "error")
    for what in (*events, *moves, *(f"ends by {reason}" for reason in endings)):
        assert seen[what] > 0, f"{what} never happened"


@pytest.mark.parametrize("seed", [seed for seed in range(12) if can_be_recorded(seed)])
def test_a_recorded_world_replays_alike(seed: int, tmp_path: Path) -> None:
    recording, path = Recording(), tmp_path / "world.jsonl"
    OverlappedWorld(seed, recording=recording).run(300)
    path.write_text(recording.getvalue())
    from splitfuse.engine.extras.simulation.replay import replay  # absent with --core-alone

    replayed = replay(path)
    assert replayed.difference is None, replayed.difference
    assert replayed.num_steps > 100


planted = planted_by_name(overlap_bugs.BUGS)


@pytest.mark.parametrize("planted", overlap_bugs.BUGS, indirect=True)
def test_a_planted_bug_is_caught(planted: Bug) -> None:
    for seed in (0, 149, *range(1, MOST_SEEDS)):  # few worlds notice that blocks are moved again: 149 does
        try:
            OverlappedWorld(seed).run(STEPS)
        except AssertionError as exc:
            print(f"seed {seed}; {str(exc).splitlines()[0]}")
            return
    pytest.fail(f"{MOST_SEEDS} worlds do not see it")
