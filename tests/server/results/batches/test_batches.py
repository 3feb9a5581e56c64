"""Batches over a store and an engine that fail now and then, and end: every line is answered once."""

import asyncio
import contextlib
import functools
import io
import json
import random
from collections.abc import Callable, Mapping
from typing import Any, TypeVar
from unittest.mock import AsyncMock

import pytest

from splitfuse.engine.errors import InvalidRequestError, UnavailableError
from splitfuse.server.http.errors import FileTooLargeError, StoreUnavailableError
from splitfuse.server.jobs.signal import Signal
from splitfuse.server.results.batches.batch import Batch, NewBatch
from splitfuse.server.results.batches.batches import Batches
from splitfuse.server.results.durable.batch_rows import LinesDone
from splitfuse.server.results.durable.memory_store import MemoryStore
from splitfuse.server.results.durable.store import Store
from splitfuse.server.settings import Settings

T = TypeVar("T")
NUM_LINES = 60
MOST_SLOTS = 8


class World:
    """Store and engine that survive the ends of their servers; `fails` says how often they fail."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 1000.0
        self.fails = 0.0
        self.num_asked = 0
        self.answered = frozenset[int]()  # lines whose answers an earlier server has stored
        self.repeated = list[int]()
        self.was_asked = Signal()
        self.store = MemoryStore(clock=lambda: self.now)

    def server(self) -> Batches:
        settings = Settings(max_batch_requests=self.rng.randint(1, MOST_SLOTS))
        return Batches(self, settings, self.answer, clock=lambda: self.now, retry_s=0.0)

    async def use(self, function: Callable[[Store], T]) -> T:
        if self.rng.random() < self.fails:
            raise StoreUnavailableError("the disk is full")
        return await self.store.use(function)

    async def asked(self, num: int) -> None:
        """Wait until `num` answers have been asked for, or a batch cannot have more."""
        while self.num_asked < min(num, NUM_LINES):
            await self.was_asked.wait()

    async def answer(self, batch: Batch, fields: Mapping[str, Any]) -> Any:
        self.num_asked += 1
        self.was_asked.fire()
        self.repeated += {fields["number"]} & self.answered
        for _ in range(self.rng.randint(0, 5)):
            await asyncio.sleep(0)
        if self.rng.random() < self.fails:
            raise UnavailableError("the engine stops")
        if fields["number"] % 7 == 0:
            raise InvalidRequestError("sevens are not served")
        return {"square": fields["number"] ** 2}


async def begin(batches: Batches, *, num_lines: int = NUM_LINES) -> Batch:
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/generate", "body": {"number": i}} for i in range(num_lines)
    ]
    file = await batches.files.add(io.BytesIO("\n".join(map(json.dumps, lines)).encode()), owner="me", filename="f")
    asked = NewBatch(
        endpoint="/generate",
        input_file_id=file.file_id,
        completion_window="1h",
        window_s=3600.0,
        metadata=None,
        files_expire_after=3600.0,
    )
    return await batches.create(asked, owner="me", key=None)


def lines_done(store: Store, batch: Batch) -> LinesDone:
    return store.lines_done(batch.batch_id, batch.output_file_id or "", batch.error_file_id or "")


async def ended(world: World, batches: Batches, batch: Batch) -> Batch:
    world.fails = 0.0 if batch.is_over else world.fails
    while not batch.is_over:
        await asyncio.sleep(0)
        try:
            batch = await batches.find(batch.batch_id, owner="me")
        except StoreUnavailableError:
            continue
    return batch


async def numbers(batches: Batches, file_id: str | None) -> list[int]:
    text = b"" if file_id is None else b"".join([piece async for piece in batches.files.contents(file_id)])
    return [int(json.loads(line)["custom_id"]) for line in text.splitlines()]


@pytest.mark.parametrize("seed", range(6))
async def test_whatever_fails_and_whenever_it_ends_every_line_is_answered_once(seed: int) -> None:
    world = World(seed)
    batches = world.server()
    batch = await begin(batches)
    may_fail = world.fails = world.rng.choice([0.0, 0.1, 0.3])
    num_ends = world.rng.randint(0, 4)
    for _ in range(num_ends):
        await world.asked(world.num_asked + world.rng.randint(0, NUM_LINES // 3))
        await batches.stop()
        batches, world.fails = world.server(), 0.0
        found = await batches.find(batch.batch_id, owner="me")
        progress = await world.use(functools.partial(lines_done, batch=found))
        world.answered = frozenset(line - 1 for line in progress.completed | progress.failed)  # lines count from 1
        await batches.resume()
        world.fails = may_fail
    done = await ended(world, batches, batch)
    world.fails = 0.0
    assert done.status == "completed"
    failed = [number for number in range(NUM_LINES) if number % 7 == 0]
    assert await numbers(batches, done.error_file_id) == failed
    assert await numbers(batches, done.output_file_id) == sorted({*range(NUM_LINES)} - {*failed})
    assert world.repeated == [], "what is answered is not asked again"
    assert (done.completed, done.failed, done.total) == (NUM_LINES - len(failed), len(failed), NUM_LINES)
    world.store.close()


@pytest.mark.parametrize("seed", range(40))
async def test_whenever_it_is_cancelled_every_line_stands_once(seed: int) -> None:
    world = World(seed)
    batches = world.server()
    batch = await begin(batches)
    await world.asked(world.rng.randint(0, NUM_LINES))
    with contextlib.suppress(InvalidRequestError):  # the batch is over
        await batches.cancel(batch.batch_id, owner="me")
    done = await ended(world, batches, batch)
    assert done.status in ("cancelled", "completed")
    every = await numbers(batches, done.output_file_id) + await numbers(batches, done.error_file_id)
    assert sorted(every) == list(range(done.total))
    assert done.completed + done.failed == done.total
    world.store.close()


async def test_batches_share_the_slots() -> None:
    world = World(0)
    batches = world.server()
    long, short = await begin(batches, num_lines=300), await begin(batches, num_lines=5)
    await ended(world, batches, short)
    assert not (await batches.find(long.batch_id, owner="me")).is_over, "the short one need not wait for it"
    await batches.stop()
    world.store.close()


async def test_a_drain_lets_lines_that_run_end_and_begins_no_others() -> None:
    world = World(0)
    batches = world.server()
    batch = await begin(batches)
    await world.asked(10)
    await batches.drain()
    await batches.stop()
    found = await batches.find(batch.batch_id, owner="me")
    assert found.completed + found.failed == world.num_asked < NUM_LINES
    batches = world.server()
    await batches.resume()
    await ended(world, batches, batch)
    assert world.num_asked == NUM_LINES, "no line is asked twice"
    world.store.close()


async def test_what_a_late_server_finds_has_expired() -> None:
    world = World(0)
    batches = world.server()
    batch = await begin(batches)
    await batches.stop()
    world.now += 3601
    batches = world.server()
    await batches.resume()
    done = await ended(world, batches, batch)
    assert (done.status, done.total) == ("expired", NUM_LINES)
    assert await numbers(batches, done.error_file_id) == list(range(NUM_LINES))
    world.store.close()


async def test_files_and_batches_are_gone_after_their_time() -> None:
    world = World(0)
    batches = world.server()
    done = await ended(world, batches, await begin(batches))
    world.now += 3601
    with pytest.raises(Exception, match="no such file"):
        await batches.files.find(done.output_file_id or "", owner="me")
    assert (await batches.find(done.batch_id, owner="me")).status == "completed"
    world.now += Settings().file_ttl + 3600
    for _ in range(9):
        world.now += 6
        await batches.files.add(io.BytesIO(b"{}"), owner="me", filename="f")
    with pytest.raises(Exception, match="no such batch"):
        await batches.find(done.batch_id, owner="me")
    assert await world.use(lambda store: store.num_parts(done.input_file_id)) == 0, "swept"
    world.store.close()


async def test_uploads_at_once_take_no_more_than_there_is_room_for() -> None:
    store = MemoryStore(clock=lambda: 1.0)
    files = Batches(store, Settings(max_total_file_bytes=250), AsyncMock(), clock=lambda: 1.0).files
    adding = [files.add(io.BytesIO(b"x" * 100), owner="", filename="f") for _ in range(5)]
    added = await asyncio.gather(*adding, return_exceptions=True)
    assert sum(isinstance(found, FileTooLargeError) for found in added) == 3
    assert await store.use(lambda store: store.num_file_bytes()) == 200
    store.close()
