"""Step records agree with their steps, block maps with the block tables; records that are not taken are bounded."""

from collections import Counter
from typing import Any

import pytest
from recorded_life import Life
from scheduler_bench import Bench, request

from splitfuse.engine.core.batch import RowOutput
from splitfuse.engine.extras.inspection.step_watcher import (
    CACHED,
    FREE,
    MAX_CELLS,
    MAX_STEPS,
    SHARED,
    StepWatcher,
    block_map,
)


def watched(bench: Bench) -> StepWatcher:
    watcher = StepWatcher(bench.scheduler, max_num_batched_tokens=512)
    bench.scheduler.listeners.append(watcher)
    return watcher


def test_a_prompt_and_its_tokens() -> None:
    bench = Bench.make(max_num_batched_tokens=8, max_num_seqs=1)
    watcher = watched(bench)
    first, second = request(12, 2), request(4, 1)
    bench.add(first, second)
    bench.run()
    requests, steps, ended = watcher.take()
    assert requests == [first, second]
    assert [step.get("chunks", []) for step in steps] == [[[0, 0, 8]], [[0, 8, 4]], [], [[1, 0, 4]]]
    assert [step.get("decodes", []) for step in steps] == [[], [], [0], []]
    assert [step.get("admitted", []) for step in steps] == [[[0, 0]], [], [], [[1, 0]]]
    assert steps[0]["stopped_at"] == [[1, "budget", 0]]
    assert steps[1]["stopped_at"] == [[1, "sequences", 0]]
    assert [(step["start"], step["end"]) for step in steps] == [(i, i) for i in (1.0, 2.0, 3.0, 4.0)]
    assert ended == [(0, "length", 3.0), (1, "length", 4.0)]
    assert watcher.take() == ([], [], [])


def test_what_is_ended_from_outside() -> None:
    bench = Bench.make()
    watcher = watched(bench)
    gone = request(4, 4)
    bench.add(gone)
    bench.scheduler.finish(gone, reason="abort", now=0.5)
    assert watcher.take() == ([gone], [], [(0, "abort", 0.5)])


def test_a_step_that_was_decided_before_it_looked_is_left_out() -> None:
    bench = Bench.make()
    bench.add(request(4, 1))
    batch = bench.scheduler.schedule(1.0)
    assert batch is not None
    watcher = watched(bench)
    bench.scheduler.update(batch, [RowOutput((7,))], 1.0)
    assert watcher.take() == ([], [], [(0, "length", 1.0)]), "but not the ends that it brought"


def test_steps_that_are_not_taken_are_bounded() -> None:
    bench = Bench.make(num_blocks=2000)
    watcher = watched(bench)
    bench.add(request(4, MAX_STEPS + 10))
    bench.run()
    steps = watcher.take()[1]
    assert (len(steps), steps[-1]["step"]) == (MAX_STEPS, MAX_STEPS + 9)


@pytest.mark.parametrize("seed", range(12))
def test_records_of_random_lives_add_up(seed: int) -> None:
    """Compare each record's tokens with the batch's; every request that came ends once."""
    life = Life(seed, busy_steps=60)
    watcher = StepWatcher(life.scheduler, max_num_batched_tokens=life.config.max_num_batched_tokens)
    life.scheduler.listeners.append(watcher)
    life.run()
    requests, steps, ended = watcher.take()
    assert len(requests) == len(life.requests)
    assert sorted(number for number, _, _ in ended) == sorted({number for number, _, _ in ended})
    assert {number for number, _, _ in ended} == set(range(len(requests)))
    rows = [len(step.get("chunks", ())) + len(step.get("decodes", ())) for step in steps]
    assert len(steps) == life.num_steps
    assert sum(rows) > 0
    for step in steps:
        running = {*(row[0] for row in step.get("chunks", ())), *step.get("decodes", ())}
        assert not running & set(step.get("left_out", ()))
        assert len(running) + len(step.get("left_out", ())) == step.get("running", 0)


def cells(bench: Bench) -> list[int]:
    map_ = mapped(bench)
    return [use for count, use in zip(map_["runs"][::2], map_["runs"][1::2], strict=True) for _ in range(count)]


def mapped(bench: Bench) -> dict[str, Any]:
    scheduler = bench.scheduler
    return block_map(scheduler.blocks, scheduler.running, scheduler.waiting)


def test_used_shared_cached_and_free() -> None:
    bench = Bench.make(num_blocks=10, block_size=4, enable_prefix_caching=True)
    ended = request(9, 1, tokens=[9] * 9)
    bench.add(ended)
    bench.step()
    bench.add(request(9, 8))
    bench.step()
    bench.add(request(9, 8))
    bench.step()
    first, second = bench.scheduler.running
    counts = Counter(cells(bench))
    assert counts[SHARED] == len(set(first.block_table) & set(second.block_table)) == 2
    assert counts[first.arrival_order] == counts[second.arrival_order] == 1
    assert counts[CACHED] == 2  # full blocks of the ended request
    assert counts[FREE] == 10 - 2 - 2 - 2


def test_a_large_cache_is_shown_in_part() -> None:
    bench = Bench.make(num_blocks=3 * MAX_CELLS)
    bench.add(request(400, 8))
    bench.step()
    assert mapped(bench)["stride"] == 3
    assert Counter(cells(bench)) == {0: 34, FREE: MAX_CELLS - 34}  # every third of 100 blocks


def test_what_is_on_the_host() -> None:
    bench = Bench.make(num_blocks=4, num_host_blocks=8, max_num_seqs=4, preemption_mode="swap", swap_space=1.0)
    first, second = request(4, 12), request(4, 12)
    bench.add(first, second)
    while not second.num_preemptions:
        bench.step()
    assert mapped(bench)["swapped"] == [[1, len(second.host_block_table)]]
