"""The broadcast of steps: nothing without viewers, one's own ids only, bounded memory."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from scheduler_bench import Bench, request

from splitfuse.engine.config import EngineConfig, ResolvedConfig
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.errors import QueueFullError
from splitfuse.engine.language.workers.shares import note_sharer
from splitfuse.server.extras.page import step_broadcast
from splitfuse.server.extras.page.step_broadcast import StepBroadcast, Viewer


class Engine:
    """Stand-in for AsyncEngine with the parts that a broadcast reads, over a scheduler alone."""

    def __init__(self) -> None:
        self.bench = Bench.make()
        self.config = ResolvedConfig.of(EngineConfig(), device="cpu")
        self.view = self

    @property
    def scheduler(self) -> Scheduler:
        return self.bench.scheduler

    def listen(self, listener: Any) -> Callable[[], None]:
        self.bench.scheduler.listeners.append(listener)
        return self.bench.scheduler.listeners.clear

    def current_requests(self) -> list[Request]:
        return [*self.bench.scheduler.running, *self.bench.scheduler.waiting]

    def stats(self) -> dict[str, Any]:
        return {"model": "m", "max_model_len": 64, "block_size": 4, "num_blocks": 1000, "cost_model": {}}


@pytest.fixture
def engine() -> Any:
    return Engine()


class Reader:
    """Reader of a viewer's chunks."""

    def __init__(self, chunks: AsyncGenerator[bytes, None]) -> None:
        self._chunks = chunks
        self._blocks: list[str] = []

    async def until(self, name: str) -> Any:
        """Return the data of the next event of this name."""
        async with asyncio.timeout(60):
            while True:
                while self._blocks:
                    event, _, data = self._blocks.pop(0).partition("\ndata: ")
                    if event == f"event: {name}":
                        return json.loads(data)
                self._blocks = (await anext(self._chunks)).decode("ascii").split("\n\n")

    async def close(self) -> None:
        await self._chunks.aclose()


async def test_a_viewer_sees_steps_and_without_one_nothing_is_gathered(engine: Any) -> None:
    broadcast = StepBroadcast()
    assert not engine.bench.scheduler.listeners
    chunks = Reader(broadcast.chunks(engine, owner=""))
    assert (await chunks.until("hello"))["budget"] == 512
    await chunks.until("blocks")
    assert engine.bench.scheduler.listeners
    engine.bench.add(request(4, 1))
    engine.bench.step()
    (shape,) = await chunks.until("requests")
    assert (shape["number"], shape["prompt"], shape["id"]) == (0, 4, "r")
    await chunks.close()
    await asyncio.sleep(0)
    assert not engine.bench.scheduler.listeners


async def test_all_viewers_get_the_same_steps(engine: Any) -> None:
    broadcast = StepBroadcast()
    viewers = [Reader(broadcast.chunks(engine, owner="")) for _ in range(3)]
    for chunks in viewers:
        await chunks.until("hello")
    await viewers[0].until("blocks")
    engine.bench.add(request(4, 1))
    engine.bench.step()
    (first,), (second,), (third,) = [await chunks.until("steps") for chunks in viewers]
    assert first == second == third
    assert first["chunks"] == [[0, 0, 4]]
    await viewers[0].close()
    assert engine.bench.scheduler.listeners, "two still look on"
    for chunks in viewers[1:]:
        await chunks.close()


async def test_the_same_decodes_are_told_once(engine: Any) -> None:
    chunks = Reader(StepBroadcast().chunks(engine, owner=""))
    await chunks.until("blocks")
    for _ in range(2):
        engine.bench.add(request(4, 3))
    for _ in range(3):
        engine.bench.step()
    assert [step.get("decodes") for step in await chunks.until("steps")] == [None, [0, 1], True]
    await chunks.close()


async def test_ids_are_told_to_their_owner_alone(engine: Any) -> None:
    broadcast = StepBroadcast()
    alice, bob = (Reader(broadcast.chunks(engine, owner=owner)) for owner in ("alice", "bob"))
    for chunks in (alice, bob):
        await chunks.until("hello")
    await alice.until("blocks")
    engine.bench.add(request(4, 1, name="secret-of-alice", tenant="alice"))
    (own,) = await alice.until("requests")
    (foreign,) = await bob.until("requests")
    assert own["id"] == "secret-of-alice"
    assert "secret" not in json.dumps(foreign)
    assert foreign == {name: value for name, value in own.items() if name != "id"}
    later = Reader(broadcast.chunks(engine, owner="bob"))
    await later.until("hello")
    for chunks in (alice, bob, later):
        await chunks.close()


async def test_one_that_comes_later_is_told_of_the_requests_that_are_there(engine: Any) -> None:
    broadcast = StepBroadcast()
    early = Reader(broadcast.chunks(engine, owner=""))
    await early.until("blocks")
    engine.bench.add(request(4, 8))
    engine.bench.step()
    await early.until("steps")
    late = Reader(broadcast.chunks(engine, owner=""))
    (shape,) = await late.until("requests")
    assert (shape["number"], shape["running"]) == (0, True)
    for chunks in (early, late):
        await chunks.close()


async def test_a_viewer_that_does_not_read_loses_events_and_is_told() -> None:
    viewer = Viewer("")
    chunk = b"x" * (step_broadcast.MAX_QUEUED_BYTES // 2)
    for _ in range(5):
        viewer.put(chunk)
    taken = await viewer.next()
    assert taken.count(b"x") == 2 * len(chunk)
    assert taken.endswith(b'event: lost\ndata: {"batches":3}\n\n')
    viewer.put(b"y")
    assert await viewer.next() == b"y"


async def test_viewers_do_not_hold_up_the_end_of_the_server(engine: Any) -> None:
    broadcast = StepBroadcast()
    chunks = broadcast.chunks(engine, owner="")
    await anext(chunks)
    broadcast.end()
    async with asyncio.timeout(60):
        assert [chunk async for chunk in chunks if b"event: steps" in chunk] == []
    assert not engine.bench.scheduler.listeners


async def test_silence_is_a_comment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_broadcast, "PING_S", 0.001)
    assert await Viewer("").next() == b": ping\n\n"


async def test_viewers_are_bounded(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_broadcast, "MAX_VIEWERS", 1)
    broadcast = StepBroadcast()
    first = Reader(broadcast.chunks(engine, owner=""))
    await first.until("hello")
    with pytest.raises(QueueFullError, match="look on already"):
        broadcast.chunks(engine, owner="")
    await first.close()
    await broadcast.chunks(engine, owner="").aclose()


async def test_a_greedy_key_leaves_places_to_other_viewers(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step_broadcast, "MAX_VIEWERS", 4)
    broadcast, readers = StepBroadcast(), list[Reader]()
    for owner, num_places in (("greedy", 2), ("other", 1)):
        note_sharer(owner)
        for _ in range(num_places):
            readers.append(Reader(broadcast.chunks(engine, owner=owner)))
            await readers[-1].until("hello")
        with pytest.raises(QueueFullError, match=f"{num_places} of your viewers look on already"):
            broadcast.chunks(engine, owner=owner)
    for reader in readers:
        await reader.close()
