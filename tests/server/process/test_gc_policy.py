"""A full garbage collection waits until no request runs."""

import asyncio
import contextlib
import gc
import weakref

import pytest

from splitfuse.server.process import gc_policy


class Cycle:
    """Reference cycle."""

    def __init__(self):
        self.me = self


class Unfinished:
    """Number of unfinished requests for the policy; `asked` is set after five questions."""

    def __init__(self, count):
        self.count = count
        self.asked = asyncio.Event()
        self.num_calls = 0

    def __call__(self):
        self.num_calls += 1
        if self.num_calls == 5:
            self.asked.set()
        return self.count


@pytest.fixture
def collected(monkeypatch):
    """Set after the first full collection."""
    event = asyncio.Event()

    def note(phase, info):
        if phase == "stop" and info["generation"] == 2:
            event.set()

    monkeypatch.setattr(gc_policy, "IDLE_CHECK_S", 0.001)
    gc.collect()
    gc.callbacks.append(note)
    yield event
    gc.callbacks.remove(note)


@contextlib.asynccontextmanager
async def collecting(unfinished, prepare=lambda: None):
    async def prepared():
        prepare()

    task = asyncio.create_task(gc_policy.collect_when_idle(unfinished, prepared))
    await asyncio.sleep(0)
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def old_garbage():
    """Make a cycle that is garbage of the old generation, after enough work for a full collection."""
    cycle = Cycle()
    for _ in range(gc_policy.MIN_YOUNG_COLLECTIONS + 2):
        gc.collect(1)
    return weakref.ref(cycle)


async def test_a_full_collection_waits_until_nothing_is_unfinished(collected):
    before = gc.get_threshold()
    unfinished = Unfinished(1)
    async with collecting(unfinished):
        ref = old_garbage()
        await asyncio.wait_for(unfinished.asked.wait(), 60)
        assert not collected.is_set()
        assert gc.get_threshold()[2] > 1_000_000
        assert ref() is not None
        unfinished.count = 0
        await asyncio.wait_for(collected.wait(), 60)
        assert ref() is None
    assert gc.get_threshold() == before


async def test_a_server_that_is_never_idle_collects_too(collected, monkeypatch):
    monkeypatch.setattr(gc_policy, "MAX_INTERVAL_S", 0.01)
    async with collecting(Unfinished(1)):
        await asyncio.wait_for(collected.wait(), 60)


async def test_a_server_that_did_nothing_collects_once_what_its_start_has_left(collected):
    with gc_policy.collecting_nothing():
        assert not gc.isenabled()
        ref = weakref.ref(Cycle())
        unfinished = Unfinished(0)
        async with collecting(unfinished):
            assert gc.isenabled()
            await asyncio.wait_for(collected.wait(), 60)
            assert ref() is None
            collected.clear()
            unfinished.num_calls = 0
            unfinished.asked.clear()
            await asyncio.wait_for(unfinished.asked.wait(), 60)
            assert not collected.is_set()


async def test_what_the_start_has_left_is_made_at_the_first_idle_moment_and_once(collected):
    calls = []
    unfinished = Unfinished(1)
    async with collecting(unfinished, lambda: calls.append(collected.is_set())):
        await asyncio.wait_for(unfinished.asked.wait(), 60)
        assert not calls
        unfinished.count = 0
        await asyncio.wait_for(collected.wait(), 60)
        unfinished.num_calls = 0
        unfinished.asked.clear()
        await asyncio.wait_for(unfinished.asked.wait(), 60)
    assert calls == [False]  # before the collection, so that it counts as what is there from then on
