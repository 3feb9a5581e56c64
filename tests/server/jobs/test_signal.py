"""Waits for a signal end when it fires or when their time is over, and all of one reader's share a timer."""

import asyncio
from contextlib import closing
from typing import Any

from splitfuse.server.jobs.signal import Signal, TimedWaits


async def test_a_wait_ends_with_the_signal_or_its_time() -> None:
    signal = Signal()
    with closing(TimedWaits(signal, 0.01)) as waits:
        assert not await waits.wait()
        task = asyncio.create_task(waits.wait())
        await asyncio.sleep(0)
        signal.fire()
        assert await task
        assert not await waits.wait()  # earlier signals do not count


async def test_many_waits_share_a_timer(monkeypatch) -> None:
    loop, signal, due = asyncio.get_running_loop(), Signal(), []
    clock = [100.0]
    monkeypatch.setattr(loop, "time", lambda: clock[0])
    call_at = loop.call_at

    def noted(when: float, *args: Any, **options: Any) -> asyncio.TimerHandle:
        due.append(when)
        return call_at(when, *args, **options)

    monkeypatch.setattr(loop, "call_at", noted)
    with closing(TimedWaits(signal, 15.0)) as waits:
        for _ in range(14):  # one a second
            loop.call_soon(signal.fire)
            assert await waits.wait()
            clock[0] += 1.0
        assert due == [115.0]
        last = asyncio.create_task(waits.wait())  # at 114
        await asyncio.sleep(0)
        for now in (115.0, 129.0):
            clock[0] = now
            for _ in range(3):
                await asyncio.sleep(0)
            assert last.done() == (now == 129.0)
        assert not await last
        assert due == [115.0, 129.0]
