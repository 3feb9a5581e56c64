"""Hangs: no step for a number of ticks while there is work, or an event loop that does not beat."""

import asyncio
import threading
import time

import pytest

from splitfuse.engine.core.outputs import StepStats
from splitfuse.server.process.watchdog import Watchdog


def stats(*, seconds=0.01, num_tokens=8):
    return StepStats(0, 0.0, seconds, 0, num_tokens, 1, 0, 1, 10, 0)


class World:
    """Watchdog with a limit of 10 ticks over an engine and an event loop that the test drives."""

    def __init__(self, **settings):
        self.has_work = True
        self.watchdog = Watchdog(
            lambda: self.has_work, **{"timeout": 10.0, "max_num_batched_tokens": lambda: 512, **settings}
        )

    def ticks(self, count, *, beats=True, steps=False):
        """Return the findings of `count` ticks."""
        found = []
        for _ in range(count):
            if beats:
                self.watchdog.beat()
            if steps:
                self.watchdog.on_step(stats())
            found.append(self.watchdog.check())
        return [why for why in found if why is not None]


def test_a_step_that_does_not_end():
    world = World()
    assert world.ticks(10) == []
    assert "no step has ended for 10 s" in world.ticks(1)[0]


def test_steps_that_end_and_no_work_are_no_hang():
    world = World()
    assert world.ticks(9) + world.ticks(1, steps=True) + world.ticks(9) == []
    world.has_work = False
    assert world.ticks(100) == []
    world.has_work = True
    assert world.ticks(10) == []
    assert world.ticks(1) != []


def test_a_blocked_event_loop_counts_without_work_too():
    world = World()
    world.has_work = False
    assert world.ticks(9, beats=False) == []
    assert "the event loop has been blocked" in world.ticks(2, beats=False)[-1]


def test_a_limit_that_is_learned():
    watchdog = World(timeout=None).watchdog
    first = watchdog.limit_s
    for _ in range(20):
        watchdog.on_step(stats())
    usual = watchdog.limit_s
    assert 60 <= usual < first, "the first steps may have to compile kernels"
    watchdog.on_step(stats(seconds=8.0, num_tokens=8))
    assert watchdog.limit_s == pytest.approx(10 * 512 * 1.0), "a whole step at 1 s per token, with a margin"
    for _ in range(1000):
        watchdog.on_step(stats())
    assert watchdog.limit_s == usual


async def test_it_watches_from_a_thread():
    """A blocked loop is found while it is blocked; the thread ends with the task."""
    found = threading.Event()
    watchdog = Watchdog(lambda: False, timeout=1.0, max_num_batched_tokens=lambda: 512)
    task = asyncio.create_task(watchdog.watch(lambda why: found.set()))
    await asyncio.sleep(0)
    assert await asyncio.to_thread(found.wait, 2.0) is False
    assert found.wait(60), "this blocks the loop"
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    until = time.monotonic() + 60
    while any(thread.name == "splitfuse-watchdog" for thread in threading.enumerate()):
        assert time.monotonic() < until
