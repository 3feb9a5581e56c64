"""AsyncEngine: the asyncio loop around the steps. Requests come in and deltas go out on the loop; the model runs in a
thread of its own, so the loop stays free for HTTP. Knows no HTTP.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from ..config import EngineConfig
from ..config.engine_config import StepLimits
from ..core.engine_core import EngineCore
from ..core.outputs import OutputDelta, RequestMetrics, Resumed, StepStats
from ..core.policies import num_interactive
from ..core.request import Request
from ..core.sampling_params import SamplingParams
from ..core.step_pipeline import StepPipeline
from ..errors import ConstraintError, EngineDeadError, RankLostError, UnavailableError
from ..execution.models.config import ModelConfig
from ..extension import load_extra
from ..text.tokenizer import Tokenizer
from .input_processor import InputProcessor, Prompt, length_of
from .queue_limits import QueueLimits
from .workers.input_threads import InputThreads

if TYPE_CHECKING:
    from .builder import EngineParts

_log = logging.getLogger("splitfuse.engine")

_T = TypeVar("_T")
DeltaSink = Callable[[OutputDelta], None]

# No step for so long counts as hung; more where steps have been seen to take long, or none has been seen at all.
_STALL_S = 10.0
_FIRST_STALL_S = 60.0
_NUM_STEPS_KEPT = 100
# So many requests that fail one after the other, and none that succeeds, are no longer the requests' doing.
_MAX_FAILURES_IN_A_ROW = 10


class EngineObserver(Protocol):
    """Receives what the engine did; called on the event loop, must be quick and must not raise."""

    def on_step(self, stats: StepStats) -> None: ...

    def on_output_finished(self, metrics: RequestMetrics, finish_reason: str) -> None: ...


class Handle:
    """One accepted request. All its deltas go to the sink it was submitted with."""

    def __init__(self, request_id: str, prompt: str | None, requests: list[Request]) -> None:
        self.request_id = request_id
        self.prompt = prompt  # the text given, None if ids were given
        self.prompt_token_ids = requests[0].token_ids[: requests[0].num_prompt_tokens]
        self.params: SamplingParams = requests[0].params
        self.arrival_time = requests[0].arrival_time
        self.seed = requests[0].seed  # of the first output; the others' follow from it
        self._requests = requests

    @property
    def started(self) -> bool:
        """Whether any of its outputs has been scheduled yet (queued otherwise)."""
        return any(request.first_scheduled_time is not None for request in self._requests)


class AsyncEngine:
    """Serves many requests at once on one asyncio loop.

    Use: construct, `await start()`, then `submit` or `generate`; `await stop()` at the end. After start,
    `model_config`, `tokenizer`, `max_model_len` and `loaded` describe what is served.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self.observers: list[EngineObserver] = []
        self.tokenizer: Tokenizer | None = None
        self.model_config: ModelConfig
        self.max_model_len = 0
        self.fingerprint = ""  # of the model: with another, a request could go on to other tokens
        self.lost: RankLostError | None = None  # of what the engine died, if it was that
        self._core: EngineCore | None = None
        self._input_processor: InputProcessor
        self._pipeline: StepPipeline
        self._sinks: dict[str, DeltaSink] = {}
        self._outputs_left: dict[str, set[int]] = {}
        self._work = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._dead = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._ranks: Any = None  # other processes of a tensor-parallel model
        self._input_threads = InputThreads(max_length=config.max_queue_chars)
        self._renderer: Any = None  # of the chat extra, if the model has a chat template
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="splitfuse-step")
        self._draining = False
        self._last_progress = time.monotonic()
        self._steps: deque[StepStats] = deque(maxlen=_NUM_STEPS_KEPT)
        self._queue_limits = QueueLimits(config)
        self._num_failures_in_a_row = 0

    async def start(self) -> None:
        """Load the model in the step thread and begin stepping. Raises ConfigError."""
        loading = asyncio.get_running_loop().run_in_executor(self._executor, self._load)
        parts, self._pipeline = await loading
        self.loaded, self.fingerprint = parts.runner.loaded, parts.fingerprint
        self.tokenizer, self._input_processor = parts.tokenizer, parts.input_processor
        if self.tokenizer is not None and self.tokenizer.has_chat_template:
            chat = load_extra("chat.renderer", needed_for="a chat template")
            self._renderer = chat.Renderer(self.tokenizer.chat_template)
        self.model_config, self.max_model_len = self.loaded.model_config, self.loaded.max_model_len
        self._core = self._pipeline.core
        self._ranks = parts.runner.ranks
        if self._ranks is not None:
            loop = asyncio.get_running_loop()
            self._ranks.on_lost(lambda error: loop.call_soon_threadsafe(self._lose, error))
        if not self._draining:  # stopped meanwhile
            self._loop_task = asyncio.create_task(self._loop(self._core), name="splitfuse-engine")

    def _load(self) -> "tuple[EngineParts, StepPipeline]":
        from .builder import load  # torch comes in here

        parts = load(self.config)
        return parts, parts.pipeline(self.config.for_streams(str(parts.runner.loaded.device)))

    async def prepare(self) -> None:
        """Make what structured output needs, which a start leaves to the first request for it: best while none runs."""
        await self._input_processor.prepare()

    @property
    def has_died(self) -> bool:
        """Whether the loop has stopped because of an error."""
        return self._dead.is_set()

    async def wait_dead(self) -> None:
        """Return when it has."""
        await self._dead.wait()

    async def stop(self) -> None:
        """Abort all requests (each output ends with finish_reason "abort") and end all tasks and threads."""
        self._draining = True
        if self._core is not None and self._loop_task is not None:
            if self._is_stepping:
                self._dispatch(self._core.abort_all())
                self._work.set()
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._idle.wait(), timeout=_STALL_S)
            self._loop_task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._loop_task
        if self._ranks is not None:
            self._ranks.end()
        self._input_threads.stop()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _lose(self, error: RankLostError) -> None:
        """Have the loop end, though it may have nothing to do."""
        self.lost = error
        self._work.set()

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109  the caller chooses it
        """Take no more requests (submit raises UnavailableError); return when the rest has finished or time is up."""
        self._draining = True
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout=timeout)

    async def submit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        sink: DeltaSink,
        *,
        request_id: str | None = None,
        tenant: str = "",
        resumed: Resumed | None = None,
    ) -> Handle:
        """Validate, tokenize off the loop, queue. `tenant`: the name under which prefix cache and fair share are kept.
        A `resumed` request goes on where another process left it, whatever the queue holds.

        Deltas reach `sink` on the event loop, in order; the last delta of each of the n outputs has a finish_reason,
        also after an abort. Raises InvalidRequestError, ContextLengthError, QueueFullError, UnavailableError;
        ValueError if the request_id is in use.
        """
        is_new = resumed is None  # else it was admitted before
        self._check_admission(params, is_new=is_new)
        threads = self._input_threads
        with threads.hold(num_requests=params.n, length=length_of(prompt)) if is_new else contextlib.nullcontext():
            tokenized = await self._input_processor.tokenize_async(prompt, params, threads=threads)
        core = self._check_admission(params, is_new=is_new)  # it may have changed meanwhile
        request_id = request_id or uuid.uuid4().hex
        if core.has(request_id):
            raise ValueError(f"request_id {request_id!r} is in use")
        requests = self._input_processor.requests(
            request_id, tokenized, now=time.monotonic(), tenant=tenant, resumed=resumed
        )
        self._sinks[request_id] = sink
        self._outputs_left[request_id] = {request.index for request in requests}
        if not self.has_work:
            self._last_progress = time.monotonic()
        core.add(requests)
        self._idle.clear()
        self._work.set()
        return Handle(request_id, prompt if isinstance(prompt, str) else None, requests)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, found off the loop. Raises QueueFullError, UnavailableError."""
        assert self.tokenizer is not None
        work = partial(self.tokenizer.encode, text, add_special_tokens=add_special_tokens)
        return await self._read(work, length=len(text))

    async def decode(self, token_ids: Sequence[int]) -> str:
        """The text of these ids, special tokens included. Raises as `encode`."""
        assert self.tokenizer is not None
        work = partial(self.tokenizer.decode, token_ids, skip_special_tokens=False)
        return await self._read(work, length=len(token_ids))

    async def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        """The prompt text of a conversation, within limits in time and memory. Options as ChatTemplate.render has.

        Raises InvalidRequestError, and as `encode`.
        """
        assert self._renderer is not None
        conversation = load_extra("chat.renderer", needed_for="messages").as_json(messages, **options)
        work: Callable[[], str] = partial(self._renderer.render, conversation)
        return await self._read(work, length=len(conversation))

    async def _read(self, work: Callable[[], _T], *, length: int) -> _T:
        """Do some of the work of reading a request, within the limits of the queue."""
        assert self._core is not None
        self._queue_limits.check_size(self._core, num_waiting=self._input_threads.num_requests, num_new=1)
        with self._input_threads.hold(num_requests=1, length=length):
            return await self._input_threads.run(work, length=length)

    def abort(self, request_id: str) -> None:
        """End a request; unknown or finished ids are ignored. Its blocks are free within one step."""
        if self._core is not None and self._is_stepping:
            self._dispatch(self._core.abort(request_id))

    async def generate(
        self, prompt: Prompt, params: SamplingParams, *, request_id: str | None = None
    ) -> AsyncIterator[OutputDelta]:
        """Deltas as they come; closing the iterator aborts. Raises as `submit`, and RequestFailedError mid-way."""
        deltas: asyncio.Queue[OutputDelta] = asyncio.Queue()
        handle = await self.submit(prompt, params, deltas.put_nowait, request_id=request_id)
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
                self.abort(handle.request_id)

    @property
    def _is_stepping(self) -> bool:
        return self._loop_task is not None and not self._loop_task.done()

    @property
    def is_ready(self) -> bool:
        """Started, not draining, loop alive."""
        return self._core is not None and not self._draining and self.is_healthy

    @property
    def is_healthy(self) -> bool:
        """False when the loop died, or no step ended for 10 s (or five times the longest one) while work was there."""
        if self._core is None:
            return True  # still loading
        if not self._is_stepping and not self._draining:
            return False
        longest = max((step.duration for step in self._steps), default=_FIRST_STALL_S / 5)
        return not self.has_work or time.monotonic() - self._last_progress < max(_STALL_S, 5 * longest)

    @property
    def has_work(self) -> bool:
        """Whether steps are due: a request is unfinished, or a step in flight. May be asked in any thread."""
        return self._core is not None and self._pipeline.has_work

    @property
    def is_failing(self) -> bool:
        """Whether the last ten requests that came to an end, aborts aside, all failed without a fault of their own."""
        return self._num_failures_in_a_row >= _MAX_FAILURES_IN_A_ROW

    @property
    def num_unfinished(self) -> int:
        """Requests that have not ended."""
        return 0 if self._core is None else self._core.num_unfinished

    def stats(self) -> dict[str, Any]:
        """A JSON-able snapshot: queue, blocks, the last steps and the rate over them."""
        core = self._core
        if core is None:
            return {"status": "loading"}
        scheduler, allocator = core.scheduler, core.blocks.device
        return {
            "status": "draining" if self._draining else "serving",
            "model": self.config.model_name,
            "num_running": len(scheduler.running),
            "num_waiting": len(scheduler.waiting),
            "num_swapped": sum(bool(request.host_block_table) for request in scheduler.waiting),
            "num_preemptions": scheduler.num_preemptions,
            "prefix_cache_queries": core.blocks.num_prefix_queries,
            "prefix_cache_hits": core.blocks.num_prefix_hits,
            "num_blocks": allocator.num_blocks,
            "num_used_blocks": allocator.num_used_blocks,
            "num_free_blocks": allocator.num_free_blocks,
            "block_size": allocator.block_size,
            "max_model_len": self.max_model_len,
            "tokens_per_s": self._tokens_per_s(),
            "predicted_wait_s": core.predicted_wait_s(),
            "speculation": None if core.speculation is None else core.speculation.to_dict(),
            "cost_model": core.cost_model.to_dict(),
            **self._input_processor.stats(),
            **self._pipeline.stats(),
            "steps": [step.to_dict() for step in self._steps],
        }

    # For those who look on.

    @property
    def step_limits(self) -> StepLimits:
        """The most tokens and sequences of a step on the device in use."""
        return self.config.limits_on(self.loaded.device.type)

    def watch(self) -> Any:
        """Return a StepWatcher, which records each step from now on, until `unwatch`. The engine must run."""
        assert self._core is not None
        inspection = load_extra("inspection.step_watcher", needed_for="watching steps")
        watcher = inspection.StepWatcher(
            self._core.scheduler, max_num_batched_tokens=self.step_limits.num_batched_tokens
        )
        self._core.scheduler.watch(watcher)
        return watcher

    def unwatch(self) -> None:
        """Make no more records."""
        assert self._core is not None
        self._core.scheduler.watch(None)

    def current_requests(self) -> list[Request]:
        """The outputs that have not ended."""
        return [] if self._core is None else [*self._core.scheduler.running, *self._core.scheduler.waiting]

    def block_map(self) -> dict[str, Any]:
        """What each block of the KV cache holds."""
        assert self._core is not None
        scheduler = self._core.scheduler
        inspection = load_extra("inspection.block_map", needed_for="the map of blocks")
        blocks: dict[str, Any] = inspection.block_map(scheduler.blocks, scheduler.running, scheduler.waiting)
        return blocks

    def metrics(self, request_id: str) -> dict[int, RequestMetrics]:
        """What is known so far of the outputs of a request that have not ended, with their histories."""
        return {} if self._core is None else self._core.metrics(request_id)

    def _check_admission(self, params: SamplingParams, *, is_new: bool = True) -> EngineCore:
        """The core, if it takes a request; the queue limits are for new ones."""
        if (core := self._core) is None:
            raise UnavailableError("the model is still loading")
        if self._draining:
            raise UnavailableError("the server is shutting down")
        if not self._is_stepping:
            raise UnavailableError("the engine has stopped; see the server's log")
        if not is_new or params.is_background:
            return core
        num_waiting = num_interactive(core.scheduler.waiting) + self._input_threads.num_requests
        self._queue_limits.check(core, num_waiting=num_waiting, num_new=params.n)
        return core

    def _tokens_per_s(self) -> float:
        """Output tokens per second over the steps kept, 0 if the last is over a second old."""
        steps = self._steps
        if len(steps) < 2 or time.monotonic() - steps[-1].time > 1.0:
            return 0.0
        num_tokens = sum(step.num_output_tokens for step in steps)
        return num_tokens / (steps[-1].time - steps[0].time + steps[0].duration)

    async def _loop(self, core: EngineCore) -> None:
        try:
            while True:
                self._work.clear()
                if self.lost is not None:
                    raise self.lost
                if self._pipeline.has_work:
                    await self._step(core)
                elif self._pipeline.has_idle_work:
                    self._idle.set()
                    await asyncio.get_running_loop().run_in_executor(self._executor, self._pipeline.do_idle_work)
                else:
                    self._idle.set()
                    await self._work.wait()
        except asyncio.CancelledError:
            raise
        except BaseException as exc:
            # A bug of ours, or a Ctrl-C that struck just here: no step can be trusted any more. Log it, end every
            # request, and let /health report it.
            if isinstance(exc, RankLostError):
                self.lost = exc
            self._fail_all()
            _log.log(logging.ERROR, "the engine loop stopped: %s", exc, exc_info=self.lost is None)
            if not isinstance(exc, Exception):
                raise

    async def _step(self, core: EngineCore) -> None:
        self._dispatch(core.expire())
        pipeline = self._pipeline
        work = pipeline.schedule()
        if work is None:
            await asyncio.sleep(0)
            return
        outputs = await asyncio.get_running_loop().run_in_executor(self._executor, pipeline.run, work)
        output = pipeline.update(work, outputs)
        if output is None:
            return  # the first step is in flight
        assert output.stats is not None
        self._last_progress = output.stats.time
        self._steps.append(output.stats)
        if self.config.log_steps:
            with contextlib.suppress(OSError):  # a closed pipe or a full disk is no reason to stop
                print(output.stats, flush=True)
        self._dispatch(output.deltas)
        for observer in self.observers:
            _notify(observer.on_step, output.stats)

    def _dispatch(self, deltas: list[OutputDelta]) -> None:
        for delta in deltas:
            try:
                self._sinks[delta.request_id](delta)
            except Exception:  # a sink is the caller's code; it must not cost other requests their tokens
                _log.exception("the sink of request %s failed", delta.request_id)
            if delta.finish_reason is not None:
                self._output_finished(delta)

    def _output_finished(self, delta: OutputDelta) -> None:
        assert delta.finish_reason is not None
        assert delta.metrics is not None
        self._queue_limits.note_end()
        self._count_failures(delta)
        for observer in self.observers:
            _notify(observer.on_output_finished, delta.metrics, delta.finish_reason)
        self._outputs_left[delta.request_id].discard(delta.index)
        if not self._outputs_left[delta.request_id]:
            del self._outputs_left[delta.request_id], self._sinks[delta.request_id]

    def _count_failures(self, delta: OutputDelta) -> None:
        if delta.finish_reason in ("stop", "length"):
            self._num_failures_in_a_row = 0
        elif delta.finish_reason == "error" and delta.index == 0 and not isinstance(delta.error, ConstraintError):
            self._num_failures_in_a_row += 1

    def _fail_all(self) -> None:
        error_id = uuid.uuid4().hex[:12]
        _log.error("requests failed with the loop, error id %s", error_id)
        error = EngineDeadError(f"the engine died (error id {error_id})", error_id=error_id)
        nothing = RequestMetrics(time.monotonic(), None, None, time.monotonic(), 0, 0, 0, 0)
        for request_id, left in list(self._outputs_left.items()):
            for index in sorted(left):
                delta = OutputDelta(request_id, index, "", (), finish_reason="error", metrics=nothing, error=error)
                self._dispatch([delta])
        self._idle.set()
        self._dead.set()


def _notify(call: Callable[..., None], *arguments: object) -> None:
    """Call an observer. It is the caller's code; if it fails, no request loses a token."""
    try:
        call(*arguments)
    except Exception:
        _log.exception("an observer failed")
