"""Watchdog: finds a step that does not end, and an event loop that is blocked, from a thread of its own.

Time is counted in its own ticks, so neither a clock that jumps nor a process that was stopped for a while looks like a
hang. It cannot see a call that never gives the interpreter back to other threads.
"""

import asyncio
import threading
from collections.abc import Callable

from ...engine.core.outputs import RequestMetrics, StepStats

_TICK_S = 1.0
# A limit that is learned is a large one: a step that was ended too soon costs every request. vLLM waits 300 s.
_LEAST_LIMIT_S = 300.0
_FIRST_LIMIT_S = 1200.0  # the first steps compile kernels, or wait for those that do
_NUM_FIRST_STEPS = 20
_SAFETY = 10.0
_MEMORY = 0.99  # a step slower than others is forgotten after some hundreds


class Watchdog:
    """An EngineObserver. `check`, once per tick, says what hangs."""

    def __init__(self, has_work: Callable[[], bool], *, timeout: float | None, max_num_batched_tokens: int) -> None:
        """`has_work`: whether steps are due; may be called in any thread. `timeout`: seconds, None = learned."""
        self._has_work = has_work
        self._timeout = timeout
        self._max_num_batched_tokens = max_num_batched_tokens
        self._tick_s = _TICK_S if timeout is None else min(_TICK_S, timeout / 4)
        self._num_steps = 0
        self._seconds_per_token = 0.0  # of the slowest step, lately
        self._num_beats = 0
        self._steps = _Unchanged()
        self._beats = _Unchanged()

    @property
    def limit_s(self) -> float:
        """Seconds that a step may take: so many times what the largest would at the slowest rate seen."""
        if self._timeout is not None:
            return self._timeout
        least = _FIRST_LIMIT_S if self._num_steps < _NUM_FIRST_STEPS else _LEAST_LIMIT_S
        return max(least, _SAFETY * self._max_num_batched_tokens * self._seconds_per_token)

    def on_step(self, stats: StepStats) -> None:
        """A step has ended."""
        self._num_steps += 1
        num_tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        self._seconds_per_token = max(stats.duration / (num_tokens or 1), self._seconds_per_token * _MEMORY)

    def on_output_finished(self, metrics: RequestMetrics, finish_reason: str) -> None:
        """Says nothing about steps."""

    def beat(self) -> None:
        """The event loop has come by."""
        self._num_beats += 1

    def check(self) -> str | None:
        """Called once per tick: what hangs, if anything does."""
        num_step_ticks = self._steps.count(self._num_steps if self._has_work() else None)
        num_beat_ticks = self._beats.count(self._num_beats)
        limit = self.limit_s
        if num_step_ticks * self._tick_s >= limit:
            return f"no step has ended for {limit:g} s while there was work (--step-timeout)"
        if num_beat_ticks * self._tick_s >= limit:
            return f"the event loop has been blocked for {limit:g} s (--step-timeout)"
        return None

    async def watch(self, on_hang: Callable[[str], object]) -> None:
        """Until cancelled: check in a thread, which calls `on_hang` with what hangs."""
        stop = threading.Event()
        threading.Thread(target=self._watch, args=(stop, on_hang), name="splitfuse-watchdog", daemon=True).start()
        try:
            while True:
                self.beat()
                await asyncio.sleep(self._tick_s)
        finally:
            stop.set()

    def _watch(self, stop: threading.Event, on_hang: Callable[[str], object]) -> None:
        while not stop.wait(self._tick_s):
            if (why := self.check()) is not None:
                on_hang(why)
                return


class _Unchanged:
    """Counts the calls in a row that brought the same value; None is never the same."""

    def __init__(self) -> None:
        self._value: int | None = None
        self._count = 0

    def count(self, value: int | None) -> int:
        self._count = self._count + 1 if value is not None and value == self._value else 0
        self._value = value
        return self._count
