"""AsyncEngine: the asyncio loop around the steps, which a thread of its own computes. Knows no HTTP."""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from ..config import EngineConfig
from ..core.outputs import OutputDelta
from ..core.sampling_params import SamplingParams
from ..core.step_pipeline import StepPipeline
from ..errors import RankLostError, SplitfuseError, UnavailableError
from ..execution.models.config import ModelConfig
from ..execution.runner.model_runner import ModelRunner
from ..language.text.tokenizer import Tokenizer
from ..language.workers.input_threads import InputThreads
from .delta_dispatch import DeltaSink
from .engine_state import STALL_S, EngineState
from .engine_view import EngineView
from .input_processor import Prompt
from .prompt_reader import PromptReader
from .submitted_request import Resumed, SubmittedRequest
from .wait_prediction import WaitPrediction

if TYPE_CHECKING:
    from .builder import EngineParts

_log = logging.getLogger("splitfuse.engine")


class AsyncEngine(EngineState):
    """Engine that serves many requests at once on one asyncio loop.

    Use: construct, `await start()`, then `submit` or `generate`; `await stop()` at the end. After start `config`,
    `model_config`, `tokenizer` and `loaded` hold what was decided, `prompts` reads prompts, `view` looks inside.
    """

    model_config: ModelConfig
    prompts: PromptReader
    runner: ModelRunner

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(config)
        self.tokenizer: Tokenizer | None = None
        self.replays: Any = None  # expected outputs, which the receipts extra verifies
        self._ranks: Any = None  # other processes of a tensor-parallel model
        self._input_threads = InputThreads(max_length=config.max_queue_chars)
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="splitfuse-step")

    # Start and end.

    async def start(self) -> None:
        """Load the model in the step's thread and begin stepping. Raises ConfigError."""
        loop = asyncio.get_running_loop()
        parts, self._pipeline = await loop.run_in_executor(self._executor, self._load)
        core = self._pipeline.core
        self.config, self.runner, self.loaded = parts.config, parts.runner, parts.runner.loaded
        self.model_config, self.max_model_len = self.loaded.model_config, self.loaded.max_model_len
        self.tokenizer, self._input_processor = parts.tokenizer, parts.input_processor
        self.default_sampling_params, self.pooler = parts.default_sampling_params, parts.pooler
        self.adapters = parts.adapters
        self.prompts = PromptReader(
            core, parts.input_processor, parts.tokenizer, self._queue_limits, self._input_threads
        )
        self.view = EngineView(self._pipeline)
        self._ranks = parts.runner.ranks
        if self._ranks is not None:
            self._ranks.on_lost(lambda error: loop.call_soon_threadsafe(self._lose, error))
        self.is_loaded = True
        if not self.is_draining:  # stopped meanwhile
            self._loop_task = asyncio.create_task(self._loop(), name="splitfuse-engine")
            self._tick()

    def _load(self) -> "tuple[EngineParts, StepPipeline]":
        from .builder import load  # imports torch

        parts = load(self._wishes, for_streams=True)
        self.replays = parts.replays()
        return parts, parts.pipeline(replays=self.replays)

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
        await self._close_disk_cache()
        self._input_threads.stop()
        self._executor.shutdown(wait=False, cancel_futures=True)

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
    ) -> SubmittedRequest:
        """Validate, tokenize off the loop, queue. `tenant`: the name under which prefix cache and fair share are kept.
        A `resumed` request goes on where another process left it, whatever the queue holds.

        Deltas reach `sink` on the event loop, in order. The last delta of each of the n outputs has a finish_reason,
        also after an abort. Raises InvalidRequestError, QueueFullError, UnavailableError; ValueError for an id in use.
        """
        is_new = resumed is None
        self._check_admission(params, is_new=is_new)
        await self.admits.wait()
        if params.adapter is not None:
            params = await self.adapters.params_for(params)
        tokenized = await self.prompts.tokenize(prompt, params, is_new=is_new)
        if self.disk_cache is not None:
            await self.disk_cache.fetch(tokenized.token_ids, tenant=tenant, salt=params.cache_salt)
        self._check_admission(params, is_new=is_new)  # again: the queue may have filled meanwhile
        request_id, core = request_id or uuid.uuid4().hex, self._pipeline.core
        if core.has(request_id):
            raise ValueError(f"request_id {request_id!r} is in use")
        now = time.monotonic()
        requests = self._input_processor.requests(request_id, tokenized, now=now, tenant=tenant, resumed=resumed)
        predicted_ttft = WaitPrediction(core).admit(requests[0], is_new=is_new)
        self._dispatch.add(requests, sink)
        if not self.has_work:
            self._num_stalled_ticks = 0
        core.add(requests, predicted_ttft=predicted_ttft)
        self._idle.clear()
        self._work.set()
        return SubmittedRequest(request_id, prompt if isinstance(prompt, str) else None, requests)

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

    def abort(self, request_id: str) -> None:
        """End a request; unknown or finished ids are ignored. Its blocks are free within one step."""
        if self._is_stepping:
            self._dispatch.send(self._pipeline.core.abort(request_id))

    def _probe(self) -> None:
        self._probe_task = asyncio.create_task(self._ask_itself())

    async def _ask_itself(self) -> None:
        """Ask the model without adapters for a token; a failure of this request is the engine's own."""

        def sink(delta: OutputDelta) -> None:
            self._dispatch.is_failing = delta.error is not None

        generates = self.pooler is None or self.pooler.generates
        params = SamplingParams(temperature=0, max_tokens=1) if generates else self.pooler.test_params()
        with contextlib.suppress(SplitfuseError):  # there is no room: the next failures ask again
            await self.submit({"prompt_token_ids": [0]}, params, sink)

    # Steps.

    async def _loop(self) -> None:
        try:
            while True:
                self._work.clear()
                if self.lost is not None:
                    raise self.lost
                if self._pipeline.has_work:
                    await (self._rest() if self._pipeline.is_paused else self._take_turn())
                    continue
                self._idle.set()
                launcher = self._pipeline.launcher
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
        pipeline = self._pipeline
        self._dispatch.send(pipeline.core.expire())
        work = pipeline.schedule()
        if work is None:
            await asyncio.sleep(0)
            return
        outputs = await asyncio.get_running_loop().run_in_executor(self._executor, pipeline.run, work)
        output = pipeline.update(work, outputs)
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
