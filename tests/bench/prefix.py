"""Cost of the prefix cache without hits, and its gain in a long chat, on a real model; and its hits beside those of an
exact LRU replay of a trace, in simulation.

`python tests/bench/prefix.py [--trace mooncake_conversation_trace.jsonl]`: 40 M-parameter Llama; trace scaled to 1/32,
so that its blocks of 512 tokens become ours of 16.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from load import closed_loop, fresh_ids, model_folder, running, serve_ids

from splitfuse.client.bench.traces import TraceRow, read_trace
from splitfuse.client.bench.workload import normal_rows
from splitfuse.engine import EngineConfig
from splitfuse.engine.core.block_manager import BlockManager
from splitfuse.engine.core.cost_model import CostModel
from splitfuse.engine.extras.simulation.simulator import Simulation
from splitfuse.server.commands.simulate import arriving

BLOCK_SIZE = 16
SCALE = 1 / 32
POOLS = (1_000, 4_000, 16_000, 64_000)


async def cost_without_hits(config: EngineConfig) -> float:
    """Return the share of the cache's own work in the time of a run with only new prompts."""
    spent = 0.0

    def timed(method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            nonlocal spent
            start = time.perf_counter()
            result = method(*args)
            spent += time.perf_counter() - start
            return result

        return call

    load = normal_rows(120, input_len=325, output_len=16, seed=2)
    before = BlockManager.find_prefix, BlockManager.remember
    async with running(config) as engine:
        BlockManager.find_prefix, BlockManager.remember = map(timed, before)  # type: ignore[method-assign]
        try:
            run = await closed_loop(engine, load, 16)
        finally:
            BlockManager.find_prefix, BlockManager.remember = before  # type: ignore[method-assign]
        assert not engine.stats()["prefix_cache_hits"]
    return spent / run.duration_s


async def second_turn(config: EngineConfig, length: int) -> tuple[float, float]:
    """Return the seconds to the first token of a chat's first turn (`length`), and of its second; medians of five."""
    firsts, seconds = [], []
    async with running(config) as engine:
        for _ in range(5):
            turn = fresh_ids(TraceRow(length, 1))
            served, answer = await serve_ids(engine, turn, 32)
            firsts.append(served.ttft)
            question = fresh_ids(TraceRow(24, 1))
            served, _ = await serve_ids(engine, turn + answer + question, 8)
            seconds.append(served.ttft)
    return statistics.median(firsts), statistics.median(seconds)


def lru_hits(load: Sequence[TraceRow], capacity: int, *, leaves_first: bool) -> int:
    """Return the hits in blocks of an LRU cache of `capacity` blocks, request by request, outputs stored, too.

    `leaves_first`: a request touches its blocks last to first, so that a beginning outlives its continuations.
    """
    cache: OrderedDict[object, None] = OrderedDict()
    hits = 0
    for number, request in enumerate(load):
        full = request.prompt_len // BLOCK_SIZE
        keys: list[object] = [request.hash_ids[: index + 1] for index in range(full)]
        for key in keys[: (request.prompt_len - 1) // BLOCK_SIZE]:
            if key not in cache:
                break
            hits += 1
        total = (request.prompt_len + request.output_len - 1) // BLOCK_SIZE
        keys += [(number, index) for index in range(full, total)]
        for key in reversed(keys) if leaves_first else keys:
            cache[key] = None
            cache.move_to_end(key)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def replay(path: Path) -> None:
    load = read_trace(path, scale=SCALE)
    total = sum(request.prompt_len // BLOCK_SIZE for request in load)
    print(f"{path.name}: {len(load)} requests, {total} full prompt blocks; blocks found:")
    print(f"{'pool':>8} {'simulated':>10} {'LRU, leaves first':>18} {'plain LRU':>10}")
    for num_blocks in POOLS:
        simulation = Simulation(
            EngineConfig(max_num_seqs=256), num_blocks=num_blocks, cost=CostModel.fixed(3.5e-3, 1e-4, 1e-6)
        )
        simulation.run(arriving(load, seed=0))
        # The pool also holds running requests; the replay has the whole pool for kept blocks.
        exact, plain = (lru_hits(load, num_blocks, leaves_first=first) for first in (True, False))
        found = simulation.num_cached_tokens // BLOCK_SIZE
        print(f"{num_blocks:>8} {found:>10} {exact:>18} {plain:>10}   {found / max(exact, plain):.3f}", flush=True)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trace", type=Path)
    trace = parser.parse_args().trace
    if trace is not None:
        replay(trace)
        return
    with tempfile.TemporaryDirectory() as folder:
        config = EngineConfig(model=model_folder(folder, "llama-40m"), load_format="dummy", max_model_len=4096)
        shares = [await cost_without_hits(config) for _ in range(3)]
        print(f"cost without hits: {statistics.median(shares):.2%} of the run ({min(shares):.2%} to {max(shares):.2%})")
        for length in (500, 1000, 2000, 3900):
            first, second = await second_turn(config, length)
            ratio = first / second
            print(f"chat of {length} tokens: {first * 1e3:.0f} ms, second turn {second * 1e3:.1f} ms: {ratio:.1f}x")


if __name__ == "__main__":
    asyncio.run(main())
