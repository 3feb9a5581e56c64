"""EngineState: state of an AsyncEngine, for health checks and statistics: loading, serving, draining, hung or dead."""

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from ..config import EngineConfig, ResolvedConfig
from ..core.outputs import StepStats
from ..core.step_pipeline import StepPipeline
from ..errors import RankLostError
from ..extension import load_extra
from .delta_dispatch import DeltaDispatch
from .engine_view import EngineView
from .guarded_hook import failures_of
from .input_processor import InputProcessor
from .queue_limits import QueueLimits

if TYPE_CHECKING:
    from ..execution.runner.model_runner import LoadedModel

# A longer time without a step counts as hung; more if steps have been seen to take long, or no step has been seen.
STALL_S = 10.0
_FIRST_STALL_S = 60.0
_REST_S = 1.0  # time between looks at the clock while paused, and a tick of the hang check
_NUM_STEPS_KEPT = 100


class EngineState:
    """State of an engine. AsyncEngine changes it."""

    config: ResolvedConfig  # from the end of `start` on
    view: EngineView
    loaded: "LoadedModel"
    _pipeline: StepPipeline
    _input_processor: InputProcessor
    _probe: Any  # AsyncEngine's: find out if the model itself fails

    def __init__(self, config: EngineConfig) -> None:
        self._wishes = config
        self.max_model_len = 0
        self.default_sampling_params: Mapping[str, Any] = {}  # values of fields that a request lacks
        self.pooler: Any = None  # Pooler of the extra, for a model that pools
        self.adapters: Any = None  # Adapters of the extra, with --enable-lora
        self.lost: RankLostError | None = None  # the reason why the engine died, if a rank was lost
        self.is_loaded = False
        self.is_draining = False
        self.admits = asyncio.Event()  # cleared while new requests have to wait before they are queued
        self.admits.set()
        self._control: Any = None  # EngineControl, once one is needed
        self._loop_task: asyncio.Task[None] | None = None
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._turn = asyncio.Lock()  # held for a step, and by `between_steps`
        self._dead = asyncio.Event()
        self._steps: deque[StepStats] = deque(maxlen=_NUM_STEPS_KEPT)
        self._num_stalled_ticks = 0  # a clock would count the time for which the process was stopped
        self._queue_limits = QueueLimits(config)
        self._dispatch = DeltaDispatch(self._queue_limits.note_end, on_failures=self._probe)
        self.observe = self._dispatch.observe

    @property
    def _is_stepping(self) -> bool:
        return self._loop_task is not None and not self._loop_task.done()

    @property
    def has_died(self) -> bool:
        """True if the loop has stopped because of an error."""
        return self._dead.is_set()

    async def wait_dead(self) -> None:
        """Return once the loop has stopped because of an error."""
        await self._dead.wait()

    @property
    def is_ready(self) -> bool:
        """True if it has started, does not drain, and its loop is alive."""
        return self.is_loaded and not self.is_draining and self.is_healthy

    @property
    def control(self) -> Any:
        """EngineControl of this engine, made when first asked for: pauses, sleep, other weights. Raises ConfigError."""
        if self._control is None:
            extra = load_extra("weight_updates.control", needed_for="pausing and changing weights")
            self._control = extra.EngineControl(self)
        return self._control

    @property
    def weights_version(self) -> int:
        """Number of updates of the weights since the start."""
        return 0 if self._control is None else int(self._control.version)

    @property
    def paused(self) -> str | None:
        """Reason why no step is taken: paused or sleeping; None if steps are taken."""
        return None if self._control is None else self._control.reason

    @property
    def is_healthy(self) -> bool:
        """False when the loop died, or no step ended for 10 s (or five times the longest one) while work was there."""
        if not self.is_loaded:
            return True
        if not self._is_stepping and not self.is_draining:
            return False
        longest = max((step.duration for step in self._steps), default=_FIRST_STALL_S / 5)
        if not self.has_work or self._pipeline.is_paused:
            return True
        return self._num_stalled_ticks * _REST_S < max(STALL_S, 5 * longest)

    def _tick(self) -> None:
        """Count a tick since the last step or the arrival of work, and come back while the engine's loop runs."""
        self._num_stalled_ticks += 1
        if self._is_stepping:
            asyncio.get_running_loop().call_later(_REST_S, self._tick)

    @property
    def is_failing(self) -> bool:
        """True if the last ten requests that ended, without aborts, failed, and then the engine's own request did."""
        return self._dispatch.is_failing

    @property
    def disk_cache(self) -> Any:
        """DiskCache of the extra; None without `--prefix-cache-dir`."""
        return getattr(self._pipeline.core.blocks, "disk", None)

    async def _close_disk_cache(self) -> None:
        if self.is_loaded and self.disk_cache is not None:
            await asyncio.get_running_loop().run_in_executor(None, self.disk_cache.close)

    @property
    def has_work(self) -> bool:
        """True if a request is unfinished or a step is in flight. Any thread may ask."""
        return self.is_loaded and self._pipeline.has_work

    @property
    def num_unfinished(self) -> int:
        """Number of requests that have not ended."""
        return self._pipeline.core.num_unfinished if self.is_loaded else 0

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the model with its present weights."""
        return self.config.fingerprint

    def fingerprint_of(self, adapter: str | None) -> str:
        """Return the fingerprint of the model with the adapter of this name: another one could go on differently."""
        if adapter is None:
            return self.fingerprint
        return f"{self.fingerprint}+{'' if self.adapters is None else self.adapters.digest(adapter)}"

    async def wait_idle(self) -> None:
        """Return when no request is unfinished."""
        await self._idle.wait()

    def abort_all(self) -> None:
        """End every request; its outputs get the finish_reason "abort"."""
        self._dispatch.send(self._pipeline.core.abort_all())
        self._work.set()

    @contextlib.asynccontextmanager
    async def between_steps(self) -> AsyncIterator[StepPipeline]:
        """Hold the steps for a block that begins when none is in flight. The block may pause or resume the pipeline."""
        async with self._turn:
            pipeline = self._pipeline
            was_paused, pipeline.is_paused = pipeline.is_paused, True
            try:
                while pipeline.is_busy:
                    await self._step()
            finally:
                pipeline.is_paused = was_paused
            yield pipeline
            self._num_stalled_ticks = 0
            self._work.set()

    async def _take_turn(self) -> None:
        async with self._turn:
            await self._step()

    async def _rest(self) -> None:
        """Wait for work or some time. Requests that have run out of time end meanwhile."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._work.wait(), _REST_S)
        self._dispatch.send(self._pipeline.core.expire())

    async def _step(self) -> None:
        """Take one step."""
        raise NotImplementedError

    def _lose(self, error: RankLostError) -> None:
        """End the loop, also if it is idle."""
        self.lost = error
        self._work.set()

    def stats(self) -> dict[str, Any]:
        """Return a snapshot for JSON: queue, blocks, the last steps and the rate over them."""
        if not self.is_loaded:
            return {"status": "loading"}
        return {
            "status": "draining" if self.is_draining else "serving",
            "model": self.config.model_name,
            "max_model_len": self.max_model_len,
            "kv_bytes_per_token": self.loaded.memory.token_bytes if self.loaded.memory else 0,
            "weights_version": self.weights_version,
            "paused": self.paused,
            "default_sampling_params": self.default_sampling_params,
            **({} if self.adapters is None else {"adapters": self.adapters.stats()}),
            **self._input_processor.stats(),
            "advice_failures": failures_of(*self.view.hooks, *self._dispatch.observers),
            **self.view.stats(self._steps),
        }
