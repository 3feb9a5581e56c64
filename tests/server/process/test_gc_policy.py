"""Python's search for lost cycles waits until nothing runs."""

import asyncio
import contextlib
import gc
import weakref

import pytest

from splitfuse.server.process import gc_policy


class Lost:
    """Part of a cycle that nobody else holds."""

    def __init__(self):
        self.me = self


class Looker:
    """Answers how much is unfinished; `enough` is set after five questions."""

    def __init__(self, num_unfinished):
        self.num_unfinished = num_unfinished
        self.enough = asyncio.Event()
        self.num_looks = 0

    def __call__(self):
        self.num_looks += 1
        if self.num_looks == 5:
            self.enough.set()
        return self.num_unfinished


@pytest.fixture
def searched(monkeypatch):
    """Set after the first full search."""
    event = asyncio.Event()

    def note(phase, info):
        if phase == "stop" and info["generation"] == 2:
            event.set()

    monkeypatch.setattr(gc_policy, "LOOK_S", 0.001)
    gc.collect()
    gc.callbacks.append(note)
    yield event
    gc.callbacks.remove(note)


@contextlib.asynccontextmanager
async def collecting(looker):
    task = asyncio.create_task(gc_policy.collect_when_idle(looker))
    await asyncio.sleep(0)
    yield
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


def outlive_the_young():
    """A cycle, lost after it has become old, and enough work that a full search is worth it."""
    lost = Lost()
    for _ in range(gc_policy.ENOUGH + 2):
        gc.collect(1)
    return weakref.ref(lost)


async def test_a_full_search_waits_until_nothing_is_unfinished(searched):
    before = gc.get_threshold()
    looker = Looker(1)
    async with collecting(looker):
        ref = outlive_the_young()
        await asyncio.wait_for(looker.enough.wait(), 10)
        assert not searched.is_set()
        assert gc.get_threshold()[2] > 1_000_000
        assert ref() is not None
        looker.num_unfinished = 0
        await asyncio.wait_for(searched.wait(), 10)
        assert ref() is None
    assert gc.get_threshold() == before


async def test_a_server_that_is_never_idle_is_searched_too(searched, monkeypatch):
    monkeypatch.setattr(gc_policy, "LONGEST_S", 0.01)
    async with collecting(Looker(1)):
        await asyncio.wait_for(searched.wait(), 10)


async def test_a_server_that_did_nothing_is_left_alone(searched):
    looker = Looker(0)
    async with collecting(looker):
        await asyncio.wait_for(looker.enough.wait(), 10)
    assert not searched.is_set()
