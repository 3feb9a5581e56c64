"""Watchdog: finds a step that does not end, or a blocked event loop, from a separate thread.

Time is counted in the watchdog's own ticks, so neither a jumping clock nor a process that was suspended looks like a
hang. It cannot see a call that never gives the interpreter back to other threads.
"""

import asyncio
import threading
from collections.abc import Callable

from ...engine.core.outputs import RequestMetrics, StepStats

_TICK_S = 1.0
# A learned limit is generous: ending a step too early costs every request. vLLM waits 300 s.
_LEAST_LIMIT_S = 300.0
_FIRST_LIMIT_S = 1200.0  # the first steps compile kernels, or wait for other ranks that do
_NUM_FIRST_STEPS = 20
_SAFETY = 10.0
_MEMORY = 0.99  # a step slower than others is forgotten after some hundreds


class Watchdog:
    """EngineObserver that looks for hangs. Call `check` once per tick."""

    def __init__(
        self, has_work: Callable[[], bool], *, timeout: float | None, max_num_batched_tokens: Callable[[], int]
    ) -> None:
        """`has_work` is True while steps are due, and may be called in any thread.

        `timeout`: seconds, None = learned. `max_num_batched_tokens` is called once a step has ended.
        """
        self._has_work = has_work
        self._timeout = timeout
        self._max_num_batched_tokens = max_num_batched_tokens
        self._tick_s = _TICK_S if timeout is None else min(_TICK_S, timeout / 4)
        self._num_steps = 0
        self._seconds_per_token = 0.0  # rate of the slowest recent step
        self._num_beats = 0
        self._steps = _Unchanged()
        self._beats = _Unchanged()

    @property
    def limit_s(self) -> float:
        """Seconds that a step may take: _SAFETY times the largest step at the slowest rate seen."""
        if self._timeout is not None:
            return self._timeout
        if not self._num_steps:
            return _FIRST_LIMIT_S
        least = _FIRST_LIMIT_S if self._num_steps < _NUM_FIRST_STEPS else _LEAST_LIMIT_S
        return max(least, _SAFETY * self._max_num_batched_tokens() * self._seconds_per_token)

    def on_step(self, stats: StepStats) -> None:
        """Count a finished step."""
        self._num_steps += 1
        num_tokens = stats.num_prefill_tokens + stats.num_decode_tokens
        self._seconds_per_token = max(stats.duration / (num_tokens or 1), self._seconds_per_token * _MEMORY)

    def on_output_finished(self, metrics: RequestMetrics, finish_reason: str) -> None:
        """Do nothing: outputs say nothing about steps."""

    def beat(self) -> None:
        """Note that the event loop runs."""
        self._num_beats += 1

    def check(self) -> str | None:
        """Return what hangs, None if nothing does. Call once per tick."""
        num_step_ticks = self._steps.count(self._num_steps if self._has_work() else None)
        num_beat_ticks = self._beats.count(self._num_beats)
        limit = self.limit_s
        if num_step_ticks * self._tick_s >= limit:
            return f"no step has ended for {limit:g} s while there was work (--step-timeout)"
        if num_beat_ticks * self._tick_s >= limit:
            return f"the event loop has been blocked for {limit:g} s (--step-timeout)"
        return None

    async def watch(self, on_hang: Callable[[str], object]) -> None:
        """Check in a thread until cancelled; the thread calls `on_hang` with the reason."""
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
    """Counter of successive calls with an unchanged value. None never counts as unchanged."""

    def __init__(self) -> None:
        self._value: int | None = None
        self._count = 0

    def count(self, value: int | None) -> int:
        self._count = self._count + 1 if value is not None and value == self._value else 0
        self._value = value
        return self._count
