"""Simulated worlds of a model with recurrent layers: no rule is broken, and planted bugs of states are caught.

SPLITFUSE_TEST_SEEDS and SPLITFUSE_TEST_STEPS set the length of the run, as in test_worlds.py.
"""

import logging
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
import state_bugs
from hybrid_world import HybridWorld, OverlappedHybridWorld
from planted_bug import Bug
from world_settings import seeds

SEEDS = seeds(os.environ.get("SPLITFUSE_TEST_SEEDS", "6"))
STEPS = int(os.environ.get("SPLITFUSE_TEST_STEPS", "1000"))
MOST_SEEDS = 40
SHOWN = [name for name, bug in state_bugs.BUGS.items() if bug.shows_in_tokens]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="splitfuse.engine")  # failures are part of every world


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


@pytest.fixture
def planted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bug]:
    bug = state_bugs.BUGS[request.param]
    monkeypatch.setattr(bug.owner, bug.name, bug.make(getattr(bug.owner, bug.name)))
    return bug


def message_of(bug: Bug, *, outputs_only: bool) -> str:
    """Return the rule that a world sees broken. Fails if none does."""
    for seed in range(MOST_SEEDS):
        world = HybridWorld(seed, outputs_only=outputs_only)
        broken = broken_rule(world) if bug.where(world.settings) else None
        if broken is not None:
            assert isinstance(broken.__cause__, AssertionError), f"a blunder of the wrong code itself: {broken}"
            return str(broken)
    pytest.fail(f"{MOST_SEEDS} worlds do not see it")


def broken_rule(world: HybridWorld) -> AssertionError | None:
    try:
        world.run(1000)
    except AssertionError as exc:
        return exc
    return None


@pytest.mark.sampled(2)
@pytest.mark.parametrize("planted", state_bugs.BUGS, indirect=True)
def test_a_planted_bug_is_caught(planted: Bug) -> None:
    message_of(planted, outputs_only=False)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("planted", SHOWN, indirect=True)
def test_a_planted_bug_shows_as_a_wrong_token(planted: Bug) -> None:
    assert "the oracle" in message_of(planted, outputs_only=True)
