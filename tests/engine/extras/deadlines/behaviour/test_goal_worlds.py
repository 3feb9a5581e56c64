"""Simulated worlds with goals catch each bug planted into the pacer, and keep the promises of deadlines."""

import random
from collections import Counter
from typing import Any

import goal_bugs
import pytest
from goals_audit import most_on_time
from planted_bug import Bug, planted_by_name, run_until_caught
from scheduler_bench import request
from world import World

from splitfuse.engine.extras.deadlines.pacer import GOAL_COUNTS, Job, on_time

pytestmark = [pytest.mark.sampled(8), pytest.mark.usefixtures("quiet")]
MOST_SEEDS = 60


planted = planted_by_name(goal_bugs.BUGS)


@pytest.mark.parametrize("planted", goal_bugs.BUGS, indirect=True)
def test_it_is_caught(planted: Bug) -> None:
    run_until_caught(planted, map(World, range(MOST_SEEDS)), num_steps=2000)


def test_prompts_are_reordered_and_goals_counted_in_some_worlds() -> None:
    seen: Counter[str] = Counter()
    for seed in range(12):
        world = World(seed)
        world.run(500)
        pacer: Any = world._core.pacer
        seen.update(pacer.stats())
        seen["reordered"] += world._audit.goals.num_reorderings
    assert min(seen[name] for name in (*GOAL_COUNTS, "reordered")) >= 10, seen


@pytest.mark.parametrize("seed", range(200))
def test_no_other_choice_has_more_first_tokens_in_time(seed: int) -> None:
    rng = random.Random(seed)
    jobs = [Job(rng.uniform(0, 6), rng.uniform(0.1, 3), request(4, name=f"r{i}")) for i in range(rng.randint(1, 7))]
    kept = on_time(jobs, 0.5)
    end = 0.5
    for job in kept:
        end += job.seconds
        assert end <= job.due
    assert len(kept) == most_on_time([(job.due, job.seconds) for job in jobs], 0.5)
