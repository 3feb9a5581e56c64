"""EngineControl: pauses, sleep and updates of the weights of an AsyncEngine, one after the other, between its steps."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from ...core.engine_core import EngineCore
from ...errors import InvalidRequestError
from ...serving.async_engine import AsyncEngine
from .live_model import LEVELS, MODES, LiveModel, NewWeights

T = TypeVar("T")
_NICENESS = 5  # the loading thread's, so that the steps come first


class EngineControl:
    """Control of one engine. New requests wait while the engine is paused; nothing is lost."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._lock = asyncio.Lock()  # one change at a time
        self._is_paused = False  # by `pause`; sleep pauses too
        self.sleep_level = 0  # 0: awake
        self.last_hold_s = 0.0  # seconds for which the last change held the steps

    @property
    def reason(self) -> str | None:
        """Reason why no step is taken: paused or sleeping; None if steps are taken."""
        return "sleeping" if self.sleep_level else "paused" if self._is_paused else None

    async def pause(self, *, mode: str = "keep") -> None:
        """Take no further step until `resume`. Raises InvalidRequestError.

        `mode` is for running requests: "keep" continues them after the pause, "wait" lets them finish first, "abort"
        ends them.
        """
        async with self._lock, self._hold_steps(mode):
            self._is_paused = True

    async def resume(self) -> None:
        """Take steps again, unless the engine sleeps."""
        async with self._lock, self._hold_steps():
            self._is_paused = False

    async def sleep(self, level: int = 1, *, mode: str = "keep") -> None:
        """Pause, and give back the memory of the cache; at level 2 also the weights' memory.

        Raises InvalidRequestError.
        """
        if level not in LEVELS:
            raise InvalidRequestError(f"level must be 1 or 2, not {level!r}", param="level")
        async with self._lock:
            model = self._engine.state(LiveModel)
            async with self._hold_steps(mode) as core:
                model.sleep(level, core)
                self.sleep_level = model.sleep_level

    async def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """End the sleep; with the tag "weights" only the weights wake up. Raises InvalidRequestError, ConfigError.

        Weights that were given back are read again.
        """
        async with self._lock:
            model = self._engine.state(LiveModel)
            weights = None if tags and "weights" not in tags else await self._prepared(model.restored)
            async with self._hold_steps():
                model.wake_up(weights, is_whole=not tags or "kv_cache" in tags)
                self.sleep_level = model.sleep_level

    async def update(self, source: Path | Iterable[tuple[str, Tensor]], *, mode: str = "keep") -> int:
        """Change to the weights of a folder or of named tensors, and return their version.

        A sleeping engine goes on sleeping. Raises InvalidRequestError, ConfigError; then nothing has changed.
        """
        async with self._lock:
            model = self._engine.state(LiveModel)
            prepare = model.load if isinstance(source, Path) else model.build
            weights: NewWeights = await self._prepared(partial(prepare, source))  # type: ignore[arg-type]
            async with self._hold_steps(mode) as core:
                version = model.take(weights, core)
                self.sleep_level = model.sleep_level
            return version

    @contextlib.asynccontextmanager
    async def _hold_steps(self, mode: str = "keep") -> AsyncIterator[EngineCore]:
        """Hold the steps for a block, and measure the time. New requests wait meanwhile if `mode` is "wait"."""
        try:
            await self._hold(mode)
            async with self._engine.between_steps() as pipeline:
                begin = time.perf_counter()
                yield pipeline.core
                self._engine.paused = self.reason
                pipeline.is_paused = self.reason is not None
                self.last_hold_s = time.perf_counter() - begin
        finally:
            self._engine.admits.set()

    async def _hold(self, mode: str) -> None:
        """Wait for running requests, or end them. With "wait", new requests wait until `admits` is set."""
        if mode not in MODES:
            raise InvalidRequestError(f"mode must be one of {', '.join(MODES)}", param="mode")
        if mode == "abort":
            self._engine.abort_all()
        if mode == "wait" and self.reason is not None:
            raise InvalidRequestError(f"the engine is {self.reason}, so no request can finish", param="mode")
        if mode == "wait":
            self._engine.admits.clear()
            await self._engine.wait_idle()

    async def _prepared(self, prepare: Callable[[], T]) -> T:
        """Prepare weights beside the steps, in a thread of lower priority. Raises ConfigError."""
        thread = ThreadPoolExecutor(1, thread_name_prefix="splitfuse-weights", initializer=_be_nice)
        try:
            return await asyncio.get_running_loop().run_in_executor(thread, prepare)
        finally:
            thread.shutdown(wait=False)


def _be_nice() -> None:
    with contextlib.suppress(OSError, AttributeError):  # on Linux the priority is a thread's own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
