"""Load on an AsyncEngine in this process: random-weight models, closed loops of clients, arrival times of tokens."""

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from splitfuse.client.bench.latency import Outcome, percentile
from splitfuse.client.bench.traces import TraceRow
from splitfuse.client.bench.workload import PromptMaker
from splitfuse.engine import AsyncEngine, EngineConfig, OutputDelta, SamplingParams
from splitfuse.engine.extras.bench.offline import SHAPES

_maker, _source = PromptMaker(vocab_size=32_000), random.Random(0)


def model_folder(folder: str, shape: str, **changes: Any) -> str:
    """Write a folder with the shape's config.json, for `load_format="dummy"`."""
    Path(folder, "config.json").write_text(json.dumps(SHAPES[shape] | changes))
    return folder


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


async def serve_ids(engine: AsyncEngine, ids: list[int], output_len: int) -> tuple[Outcome, list[int]]:
    """Run a prompt greedily to its end. Returns the arrival times, and the tokens."""
    sent = time.monotonic()
    times: list[float] = []
    tokens: list[int] = []
    ended = asyncio.Event()

    def sink(delta: OutputDelta) -> None:
        times.extend([time.monotonic()] * len(delta.token_ids))
        tokens.extend(delta.token_ids)
        if delta.finish_reason is not None:
            ended.set()

    await engine.submit(ids, SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True), sink)
    await ended.wait()
    return Outcome.of_tokens(len(ids), sent=sent, token_times=times), tokens


async def serve_one(engine: AsyncEngine, request: TraceRow) -> Outcome:
    """Run a new prompt of this length, like serve_ids."""
    return (await serve_ids(engine, fresh_ids(request), request.output_len))[0]


def fresh_ids(request: TraceRow) -> list[int]:
    """Return token ids below 32,000 that no other call returns."""
    return list(_maker.token_ids(request, _source))


@dataclass
class Run:
    """Run of a closed loop."""

    served: list[Outcome] = field(default_factory=list)
    duration_s: float = 0.0

    @property
    def requests_per_s(self) -> float:
        return len(self.served) / self.duration_s

    def gap_ms(self, percent: float) -> float:
        """Return a percentile of all gaps between tokens."""
        return 1e3 * (percentile(sorted(gap for one in self.served for gap in one.itls), percent) or 0.0)

    def ttft_s(self, percent: float) -> float:
        """Return a percentile of the times to a first token."""
        return percentile(sorted(one.ttft for one in self.served), percent) or 0.0


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
