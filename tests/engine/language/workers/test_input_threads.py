"""Short prompts beside long ones, the limit on all of them, and the end."""

import asyncio
import threading

import pytest

from splitfuse.engine.errors import QueueFullError, UnavailableError
from splitfuse.engine.language.workers.input_threads import LONG_CHARS, InputThreads


async def test_short_prompts_wait_for_no_long_one() -> None:
    threads, gate = InputThreads(max_length=10), threading.Event()
    long = [asyncio.create_task(threads.run(gate.wait, length=LONG_CHARS + 1)) for _ in range(20)]
    assert await threads.run(lambda: "short", length=LONG_CHARS) == "short"
    assert not any(task.done() for task in long)
    gate.set()
    assert await asyncio.gather(*long) == [True] * 20
    threads.stop()


async def test_what_is_held_is_limited_and_counted() -> None:
    threads = InputThreads(max_length=10)
    with threads.hold(num_requests=2, length=100):
        assert (threads.num_requests, threads.length) == (2, 100), "alone, any length is taken"
        with (
            pytest.raises(QueueFullError, match="--max-queue-chars is 10") as info,
            threads.hold(num_requests=1, length=1),
        ):
            pass
        assert 1 <= info.value.retry_after_s <= 60
        assert (threads.num_requests, threads.length) == (2, 100)
    with threads.hold(num_requests=1, length=5), threads.hold(num_requests=1, length=5):
        assert (threads.num_requests, threads.length) == (2, 10)
    assert (threads.num_requests, threads.length) == (0, 0)


async def test_what_waits_at_the_end_is_refused() -> None:
    threads, gate, has_begun = InputThreads(max_length=10), threading.Event(), threading.Event()

    def work() -> bool:
        has_begun.set()
        return gate.wait()

    begun = asyncio.create_task(threads.run(work, length=LONG_CHARS + 1))
    waiting = asyncio.create_task(threads.run(work, length=LONG_CHARS + 1))
    await asyncio.to_thread(has_begun.wait)
    threads.stop()
    gate.set()
    assert await begun
    with pytest.raises(UnavailableError):
        await waiting
    with pytest.raises(UnavailableError):
        await threads.run(work, length=1)
