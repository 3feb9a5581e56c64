"""Through AsyncEngine: a second turn finds the first turn's blocks, tenants are isolated, metrics show swaps."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from engines import Collector, running_engine
from tiny_models import save_model

from splitfuse.engine import LLM, AsyncEngine, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)


async def cached_tokens(engine: AsyncEngine, prompt: list[int], *, tenant: str = "") -> int:
    sink = Collector()
    await engine.submit(prompt, GREEDY, sink, tenant=tenant)
    await sink.ended.wait()
    metrics = sink.deltas[-1].metrics
    assert metrics is not None
    return metrics.num_cached_tokens


async def test_a_second_turn_computes_only_what_is_new(tiny_folder: str) -> None:
    async with running_engine(tiny_folder, block_size=16) as engine:
        first = list(range(20, 120))
        assert await cached_tokens(engine, first) == 0
        assert await cached_tokens(engine, [*first, 7, 7, 7]) == 96
        assert await cached_tokens(engine, first, tenant="another tenant") == 0
        stats = engine.stats()
        assert (stats["prefix_cache_queries"], stats["prefix_cache_hits"]) == (303, 96)
        assert stats["num_free_blocks"] == stats["num_blocks"], "what is only remembered is free"


async def test_swapping_shows_in_the_numbers(tiny_folder: str) -> None:
    async with running_engine(
        tiny_folder, num_kv_blocks=12, block_size=4, swap_space=0.01, preemption_mode="swap"
    ) as engine:
        seen: list[int] = []

        class Watcher:
            def on_step(self, stats) -> None:  # type: ignore[no-untyped-def]
                seen.append(stats.num_swapped_out)

            def on_output_finished(self, metrics, finish_reason) -> None:  # type: ignore[no-untyped-def]
                pass

        engine.observe(Watcher())
        sinks = [Collector() for _ in range(4)]
        for sink in sinks:
            await engine.submit([30] * 10, SamplingParams(temperature=0, max_tokens=25, ignore_eos=True), sink)
        await asyncio.gather(*(sink.ended.wait() for sink in sinks))
        assert sum(seen) > 0
        assert sum(seen) == engine.stats()["num_preemptions"]
        assert engine.stats()["num_swapped"] == 0


@pytest.mark.parametrize("name", ["lfm2", "qwen3-next"])
async def test_states_come_back_from_the_host(tmp_path: Path, name: str) -> None:
    save_model(name, tmp_path)
    prompts = [[30 + i, *range(40, 50)] for i in range(4)]
    params = SamplingParams(temperature=0, max_tokens=25, ignore_eos=True)
    alone = LLM(model=str(tmp_path), dtype="float32", enable_prefix_caching=False)
    expected = [output.outputs[0].token_ids for output in alone.generate(prompts, params)]
    options: dict[str, Any] = {"num_kv_blocks": 12, "block_size": 4, "swap_space": 0.01, "preemption_mode": "swap"}
    async with running_engine(str(tmp_path), enable_prefix_caching=False, **options) as engine:
        sinks = [Collector() for _ in prompts]
        for prompt, sink in zip(prompts, sinks, strict=True):
            await engine.submit(prompt, params, sink)
        await asyncio.gather(*(sink.ended.wait() for sink in sinks))
        stats = engine.stats()
    assert stats["num_preemptions"] > 2
    assert stats["num_host_state_slots"] > 0
    assert stats["num_used_host_state_slots"] == 0
    found = [[token for delta in sink.deltas for token in delta.token_ids] for sink in sinks]
    assert found == expected
