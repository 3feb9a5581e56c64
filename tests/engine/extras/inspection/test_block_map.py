"""Block maps agree with the block tables and the prefix cache."""

from collections import Counter
from typing import Any

from scheduler_bench import Bench, request

from splitfuse.engine.extras.inspection.block_map import CACHED, FREE, MAX_CELLS, SHARED, block_map


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
