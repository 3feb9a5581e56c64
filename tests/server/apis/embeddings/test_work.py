"""Inputs of one request go through the engine some steps ahead, however large the device's steps are."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.outputs import OutputDelta
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.server.apis.embeddings.work import _Run


@pytest.mark.parametrize(("device", "budget"), [("cpu", 512), ("cuda", 2048)])
async def test_three_steps_of_the_device_wait_in_the_queue(device: str, budget: int) -> None:
    sinks: list[Any] = []
    longest = 0

    async def submit(token_ids: list[int], params: object, sink: Any, *, tenant: str) -> Any:
        nonlocal longest
        sinks.append((str(len(sinks)), sink))
        longest = max(longest, 100 * sum(sink is not None for _, sink in sinks))
        return SimpleNamespace(request_id=str(len(sinks) - 1))

    engine = SimpleNamespace(config=ResolvedConfig.of(EngineConfig(), device=device), submit=submit, abort=None)
    prompts = [SimpleNamespace(token_ids=[1] * 100, params=SamplingParams()) for _ in range(100)]
    run = _Run(SimpleNamespace(engine=engine), prompts, tenant="", is_background=False)  # type: ignore[arg-type]
    task = asyncio.create_task(run.finish())
    while not task.done():
        await asyncio.sleep(0)
        for index, (request_id, sink) in enumerate(sinks):
            if sink is not None:
                sinks[index] = (request_id, None)
                sink(OutputDelta(request_id, 0, "", (), finish_reason="stop"))
                break
    await task
    assert 3 * budget - 300 < longest <= 3 * budget
