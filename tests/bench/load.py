"""Load on an AsyncEngine in this process: closed loops of clients, arrival times of tokens."""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from splitfuse.client.bench.latency import Outcome
from splitfuse.client.bench.traces import TraceRow
from splitfuse.client.bench.workload import PromptMaker
from splitfuse.engine import AsyncEngine, EngineConfig, OutputDelta, SamplingParams

_maker, _source = PromptMaker(vocab_size=32_000), random.Random(0)


@asynccontextmanager
async def running(config: EngineConfig) -> AsyncIterator[AsyncEngine]:
    """Start an engine that has served a request already."""
    engine = AsyncEngine(config)
    await engine.start()
    try:
        await serve_one(engine, TraceRow(64, 8))
        yield engine
    finally:
        await engine.stop()


async def serve_one(engine: AsyncEngine, request: TraceRow) -> Outcome:
    """Run a new prompt of this length greedily to its end. Returns the arrival times."""
    ids = list(_maker.token_ids(request, _source))
    sent = time.monotonic()
    times: list[float] = []
    ended = asyncio.Event()

    def sink(delta: OutputDelta) -> None:
        times.extend([time.monotonic()] * len(delta.token_ids))
        if delta.finish_reason is not None:
            ended.set()

    await engine.submit(ids, SamplingParams(temperature=0, max_tokens=request.output_len, ignore_eos=True), sink)
    await ended.wait()
    return Outcome.of_tokens(len(ids), sent=sent, token_times=times)


@dataclass
class Run:
    """Run of a closed loop."""

    served: list[Outcome] = field(default_factory=list)
    duration_s: float = 0.0


async def closed_loop(engine: AsyncEngine, requests: Sequence[TraceRow], clients: int) -> Run:
    """Run clients, each with one request at a time, until all requests are served."""
    run = Run()
    queue = iter(requests)

    async def client() -> None:
        for request in queue:
            run.served.append(await serve_one(engine, request))

    start = time.monotonic()
    await asyncio.gather(*(client() for _ in range(clients)))
    run.duration_s = time.monotonic() - start
    return run
