"""Engines on tiny models for tests, and collectors of their outputs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from splitfuse.engine import AsyncEngine, CompletionOutput, EngineConfig, OutputDelta, SamplingParams


@asynccontextmanager
async def running_engine(folder: str, **settings: object) -> AsyncIterator[AsyncEngine]:
    """Start an engine on a folder's model in float32; stop the engine at the end."""
    engine = AsyncEngine(EngineConfig(model=folder, dtype="float32", device="cpu", **settings))  # type: ignore[arg-type]
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


async def collect(engine: AsyncEngine, prompt: object, params: SamplingParams) -> list[CompletionOutput]:
    """Return all outputs of one request."""
    outputs = [CompletionOutput(index) for index in range(params.n)]
    async for delta in engine.generate(prompt, params):  # type: ignore[arg-type]
        outputs[delta.index].add(delta)
    return outputs


class Collector:
    """Sink that collects deltas and sets an event when the last output ended."""

    def __init__(self, n: int = 1) -> None:
        self.deltas: list[OutputDelta] = []
        self.ended = asyncio.Event()
        self._grew = asyncio.Event()
        self._left = n

    def __call__(self, delta: OutputDelta) -> None:
        self.deltas.append(delta)
        self._grew.set()
        self._left -= delta.finish_reason is not None
        if not self._left:
            self.ended.set()

    async def until(self, count: int) -> None:
        """Wait until `count` deltas have come."""
        while len(self.deltas) < count:
            self._grew.clear()
            await self._grew.wait()
