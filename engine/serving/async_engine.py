"""AsyncEngine: the asyncio loop around the steps, which a thread of its own computes. Knows no HTTP."""

import asyncio
import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..config import EngineConfig, ResolvedConfig
from ..core.batch import RowOutput
from ..core.engine_core import EngineCore
from ..core.outputs import OutputDelta, StepStats
from ..core.sampling_params import SamplingParams
from ..core.step_pipeline import StepPipeline, Work
from ..errors import RankLostError, SplitfuseError, UnavailableError
from ..execution.models.config import ModelConfig
from ..language.text.tokenizer import Tokenizer
from ..language.workers.input_threads import InputThreads
from .delta_dispatch import DeltaDispatch, DeltaSink
from .engine_part import ExtensionParts, P, T
from .engine_view import EngineView
from .guarded_hook import failures_of
from .input_processor import InputProcessor, Prompt
from .prompt_reader import PromptReader
from .queue_limits import QueueLimits
from .submitted_request import Resumed, SubmittedRequest
from .wait_prediction import WaitPrediction

if TYPE_CHECKING:
    from ..execution.runner.model_runner import LoadedModel, ModelRunner  # import torch

_log = logging.getLogger("splitfuse.engine")
# A longer time without a step counts as hung; more if steps have been seen to take long, or no step has been seen.
STALL_S = 10.0
_FIRST_STALL_S = 60.0
_REST_S = 1.0  # time between looks at the clock while paused, and a tick of the hang check
_NUM_STEPS_KEPT = 100


class AsyncEngine:
    """Engine that serves many requests at once on one asyncio loop.

    Use: construct, `await start()`, then `submit` or `generate`; `await stop()` at the end. After start `config`,
    `model_config`, `tokenizer` and `loaded` hold what was decided, `prompts` reads prompts, `view` looks inside.
    LLM's engine is offline: it has no loop task and no threads, and its queue no limits. LLM calls `load` and `step`.
    """

    config: ResolvedConfig
    model_config: ModelConfig
    prompts: PromptReader
    runner: "ModelRunner"
    view: EngineView
    loaded: "LoadedModel"
    pipeline: StepPipeline
    _input_processor: InputProcessor

    def __init__(self, config: EngineConfig, *, is_offline: bool = False, makes_text: bool = True) -> None:
        self._wishes, self._is_offline, self._makes_text = config, is_offline, makes_text
        self.extensions = ExtensionParts()
        self.weights_version = 0  # number of updates so far
        self.weights_path: Path | None = None  # folder or GGUF file; None if the weights came as tensors
        self.paused: str | None = None  # reason why no step is taken: paused or sleeping
        self._states: dict[type, Any] = {}
        self._making_state = threading.RLock()
        self.tokenizer: Tokenizer | None = None
        self.max_model_len = 0
        self.default_sampling_params: Mapping[str, Any] = {}  # values of fields that a request lacks
        self.default_sampling_source = ""
        self.lost: RankLostError | None = None  # the reason why the engine died, if a rank was lost
        self._fault: Exception | None = None  # error of a step outside the loop, which ends the loop
        self.is_loaded = False
        self.is_draining = False
        self.admits = asyncio.Event()  # cleared while new requests have to wait before they are queued
        self.admits.set()
        self._loop_task: asyncio.Task[None] | None = None
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._turn = asyncio.Lock()  # held for a step, and by `between_steps`
        self._dead = asyncio.Event()
        self._steps: deque[StepStats] = deque(maxlen=_NUM_STEPS_KEPT)
        self._num_stalled_ticks = 0  # a clock would count the time for which the process was stopped
        self._queue_limits = QueueLimits(config)
        self._dispatch = DeltaDispatch(self._queue_limits.note_end, on_failures=None if is_offline else self._probe)
        self.observe = self._dispatch.observe
        self._ranks: Any = None  # other processes of a tensor-parallel model
        self._input_threads = InputThreads(max_length=config.max_queue_chars, is_direct=is_offline)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="splitfuse-step")

    # Start and end.

    async def start(self) -> None:
        """Load the model in the step's thread and begin stepping. Raises ConfigError."""
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self.load)
        self._ranks = self.runner.ranks
        if self._ranks is not None:
            self._ranks.on_lost(lambda error: loop.call_soon_threadsafe(self._lose, error))
        self.is_loaded = True
        if not self.is_draining:  # stopped meanwhile
            self._loop_task = asyncio.create_task(self._loop(), name="splitfuse-engine")
            self._tick()

    def load(self) -> None:
        """Load the model in this thread. Raises ConfigError."""
        from .builder import load  # imports torch

        parts = load(self._wishes, for_streams=not self._is_offline)
        self.pipeline = (parts if self._makes_text else replace(parts, tokenizer=None)).pipeline()
        self.config, self.runner, self.loaded = parts.config, parts.runner, parts.runner.loaded
        self.model_config, self.max_model_len = self.loaded.model_config, self.loaded.max_model_len
        self.tokenizer, self._input_processor = parts.tokenizer, parts.input_processor
        self.default_sampling_params = parts.default_sampling_params
        self.default_sampling_source = parts.default_sampling_source
        self.extensions, self.weights_path = parts.extensions, parts.path
        self.prompts = PromptReader(
            self.core, parts.input_processor, parts.tokenizer, self._queue_limits, self._input_threads
        )
        if self.generates and not self._is_offline:
            self.prompts.prepare()
        self.view = EngineView(self.pipeline)
        self.is_loaded = self._is_offline

    async def prepare(self) -> None:
        """Prepare structured output, which start leaves to the first request for it. Best while no request runs."""
        await self._input_processor.prepare()

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109  the caller chooses it
        """Refuse new requests (submit raises UnavailableError). Return when all have finished or time is up."""
        self.is_draining = True
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout=timeout)

    async def stop(self) -> None:
        """Abort all requests (each output ends with finish_reason "abort") and end all tasks and threads."""
        self.is_draining = True
        if self._loop_task is not None:
            if self._is_stepping:
                self.abort_all()
                await self.drain(STALL_S)
            self._loop_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop_task
        if self._ranks is not None:
            self._ranks.end()
        await asyncio.get_running_loop().run_in_executor(None, self.extensions.close)
        self._input_threads.stop()
        self._executor.shutdown(wait=False, cancel_futures=True)

    # State.

    @property
    def core(self) -> EngineCore:
        """Requests and their scheduler."""
        return self.pipeline.core

    @property
    def _is_stepping(self) -> bool:
        return self._is_offline if self._loop_task is None else not self._loop_task.done()

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
    def is_healthy(self) -> bool:
        """False when the loop died, or no step ended for 10 s (or five times the longest one) while work was there."""
        if not self.is_loaded:
            return True
        if not self._is_stepping and not self.is_draining:
            return False
        longest = max((step.duration for step in self._steps), default=_FIRST_STALL_S / 5)
        if not self.has_work or self.pipeline.is_paused:
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
    def has_work(self) -> bool:
        """True if a request is unfinished or a step is in flight. Any thread may ask."""
        return self.is_loaded and self.pipeline.has_work

    @property
    def num_unfinished(self) -> int:
        """Number of requests that have not ended."""
        return self.core.num_unfinished if self.is_loaded else 0

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
            **self.extensions.stats(),
            **self._input_processor.stats(),
            "advice_failures": failures_of(*self.view.hooks, *self._dispatch.observers),
            **self.view.stats(self._steps),
        }

    # Extensions, and what changes with the weights.

    def part(self, kind: type[P]) -> P | None:
        """Return an extension's part of this class; None if the engine has none."""
        return self.extensions.find(kind)

    def state(self, kind: type[T]) -> T:
        """Return an extension's state of this class, made of the engine when first asked for."""
        with self._making_state:
            if kind not in self._states:
                self._states[kind] = kind(self)  # type: ignore[call-arg]
        found: T = self._states[kind]
        return found

    @property
    def generates(self) -> bool:
        """False if the model only computes states."""
        return self.extensions.generate

    @property
    def variants(self) -> list[Any]:
        """Variants of the model that requests can name."""
        return [variant for part in self.extensions for variant in part.variants]

    @property
    def fingerprint(self) -> str:
        """Fingerprint of the weights; with others a resumed request could go on to other tokens."""
        return self.config.fingerprint

    def fingerprint_of(self, variant: str | None) -> str:
        """Return the fingerprint of the model's variant of this name: another one could go on differently."""
        if variant is None:
            return self.config.fingerprint
        return f"{self.config.fingerprint}+{''.join(part.variant_digest(variant) for part in self.extensions)}"

    def take_weights(self, path: Path | None, fingerprint: str) -> None:
        """Note that the model has other weights from now on."""
        self.weights_version += 1
        self.weights_path, self.config = path, replace(self.config, fingerprint=fingerprint)
        for part in self.extensions:
            part.weights_changed(path, fingerprint)

    # Requests.

    async def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        sink: DeltaSink,
        *,
        request_id: str | None = None,
        tenant: str = "",
        resumed: Resumed | None = None,
        arrival_time: float | None = None,
    ) -> SubmittedRequest:
        """Validate, tokenize off the loop, queue. `tenant`: the name under which prefix cache and fair share are kept.
        `arrival_time`: begin of the latencies by time.monotonic(), now if None. A `resumed` request goes on where
        another process left it, whatever the queue holds.

        Deltas reach `sink` on the event loop, in order. The last delta of each of the n outputs has a finish_reason,
        also after an abort. Raises InvalidRequestError, QueueFullError, UnavailableError; ValueError for an id in use.
        """
        is_new = (resumed is None or resumed.is_new) and not self._is_offline
        self._check_admission(params, is_new=is_new)
        await self.admits.wait()
        for part in self.extensions:
            params = await part.params_for(params, tenant=tenant)
        tokenized = await self.prompts.tokenize(prompt, params, is_new=is_new)
        for part in self.extensions:
            tokenized = await part.constrained(tokenized, self.prompts)
            await part.fetch(tokenized.token_ids, params, tenant=tenant)
        self._check_admission(params, is_new=is_new)  # again: the queue may have filled meanwhile
        request_id, core = request_id or uuid.uuid4().hex, self.core
        if core.has(request_id):
            raise ValueError(f"request_id {request_id!r} is in use")
        now = time.monotonic() if arrival_time is None else arrival_time
        requests = self._input_processor.requests(request_id, tokenized, now=now, tenant=tenant, resumed=resumed)
        predicted_ttft = WaitPrediction(core).admit(requests[0], is_new=is_new)
        self._dispatch.add(requests, sink)
        if not self.has_work:
            self._num_stalled_ticks = 0
        core.add(requests, predicted_ttft=predicted_ttft)
        self._idle.clear()
        self._work.set()
        parent = None if resumed is None else resumed.parent
        return SubmittedRequest(request_id, prompt if isinstance(prompt, str) else None, requests, parent)

    def _check_admission(self, params: SamplingParams, *, is_new: bool) -> None:
        """Raise UnavailableError, or QueueFullError for a new request: others were admitted before."""
        if not self.is_loaded:
            raise UnavailableError("the model is still loading")
        if self.is_draining:
            raise UnavailableError("the server is shutting down")
        if not self._is_stepping:
            raise UnavailableError("the engine has stopped; see the server's log")
        if is_new:
            self.prompts.check_queue(params)

    async def generate(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None
    ) -> AsyncIterator[OutputDelta]:
        """Yield deltas as they come; closing the iterator aborts. Raises like `submit`; RequestFailedError later."""
        deltas: asyncio.Queue[OutputDelta] = asyncio.Queue()
        submitted = await self.submit(prompt, params, deltas.put_nowait, request_id=request_id)
        unfinished = params.n
        try:
            while unfinished:
                delta = await deltas.get()
                if delta.error is not None:
                    raise delta.error
                unfinished -= delta.finish_reason is not None
                yield delta
        finally:
            if unfinished:
                self.abort(submitted.request_id)

    def abort_all(self) -> None:
        """End every request; its outputs get the finish_reason "abort"."""
        self._dispatch.send(self.core.abort_all())
        self._work.set()

    def abort(self, request_id: str, index: int | None = None) -> None:
        """End a request, or its output `index`; unknown or finished ids are ignored. Blocks are free within a step."""
        if self._is_stepping:
            self._dispatch.send(self.core.abort(request_id, index))

    def _probe(self) -> None:
        self._probe_task = asyncio.create_task(self._ask_itself())

    async def _ask_itself(self) -> None:
        """Ask the model without adapters for a token; a failure of this request is the engine's own."""

        def sink(delta: OutputDelta) -> None:
            self._dispatch.is_failing = delta.error is not None

        params = self.extensions.wrapped("test_params", SamplingParams(temperature=0, max_tokens=1))
        with contextlib.suppress(SplitfuseError):  # there is no room: the next failures ask again
            await self.submit({"prompt_token_ids": [0]}, params, sink)

    # Steps.

    async def wait_idle(self) -> None:
        """Return when no request is unfinished."""
        await self._idle.wait()

    @contextlib.asynccontextmanager
    async def between_steps(self) -> AsyncIterator[StepPipeline]:
        """Hold the steps for a block that begins when none is in flight. The block may pause or resume the pipeline.

        Raises UnavailableError if the step in flight fails, which ends the engine.
        """
        async with self._turn:
            pipeline = self.pipeline
            was_paused, pipeline.is_paused = pipeline.is_paused, True
            try:
                while pipeline.is_busy:
                    await self._step()
            except Exception as exc:  # no step can be trusted any more
                self._fault = exc
                self._work.set()
                raise UnavailableError("the engine has stopped; see the server's log") from exc
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
        self._dispatch.send(self.core.expire())

    def _lose(self, error: RankLostError) -> None:
        """End the loop, also if it is idle."""
        self.lost = error
        self._work.set()

    async def _loop(self) -> None:
        try:
            while True:
                self._work.clear()
                if (fault := self.lost or self._fault) is not None:
                    raise fault
                if self.pipeline.has_work:
                    await (self._rest() if self.pipeline.is_paused else self._take_turn())
                    continue
                self._idle.set()
                launcher = self.pipeline.launcher
                if launcher is not None and launcher.has_idle_work:
                    await asyncio.get_running_loop().run_in_executor(self._executor, launcher.do_idle_work)
                else:
                    await self._work.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as exc:
            # A bug of ours, or a Ctrl-C that struck just here: no step can be trusted any more. Log it, end every
            # request, and let /health report it.
            if isinstance(exc, RankLostError):
                self.lost = exc
            self._dispatch.fail_all()
            self._idle.set()
            self._dead.set()
            _log.log(logging.ERROR, "the engine loop stopped: %s", exc, exc_info=self.lost is None)
            if not isinstance(exc, Exception):
                raise

    async def _step(self) -> None:
        if self._is_offline:
            self.step()
        elif (work := self._schedule()) is None:
            await asyncio.sleep(0)
        else:
            run = asyncio.get_running_loop().run_in_executor(self._executor, self.pipeline.run, work)
            self._update(work, await run)

    def step(self) -> None:
        """Take a step of an offline engine in this thread."""
        if (work := self._schedule()) is not None:
            self._update(work, self.pipeline.run(work))

    def _schedule(self) -> Work | None:
        self._dispatch.send(self.core.expire())
        return self.pipeline.schedule()

    def _update(self, work: Work, outputs: Sequence[RowOutput]) -> None:
        output = self.pipeline.update(work, outputs)
        if output is None:
            return  # the first step is in flight
        assert output.stats is not None
        self._num_stalled_ticks = 0
        self._steps.append(output.stats)
        if self.config.log_steps:
            with contextlib.suppress(OSError):  # a closed pipe or a full disk is no reason to stop
                print(output.stats, flush=True)
        self._dispatch.send(output.deltas)
        self._dispatch.send_stats(output.stats)
