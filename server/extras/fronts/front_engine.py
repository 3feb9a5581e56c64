"""FrontEngine: AsyncEngine without torch: prompts and text here, steps in the engine's process.

FrontCore has EngineCore's place. A request is here until its last delta: if the engine's process dies, the next one
gets the request again, with the tokens that it has.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ....engine.config import ResolvedConfig
from ....engine.core.batch import Progress, RowOutput
from ....engine.core.cost_model import CostModel
from ....engine.core.outputs import OutputDelta, RequestMetrics
from ....engine.core.ports import Pacer
from ....engine.core.request import Request, Status
from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import EngineDeadError, RequestFailedError, SplitfuseError, UnavailableError, new_error_id
from ....engine.language.text.tokenizer import Tokenizer
from ....engine.serving.async_engine import AsyncEngine
from ....engine.serving.delta_dispatch import DeltaSink
from ....engine.serving.engine_view import EngineView
from ....engine.serving.input_processor import InputProcessor, Prompt
from ....engine.serving.output_processor import OutputProcessor
from ....engine.serving.prompt_reader import PromptReader
from ....engine.serving.submitted_request import Resumed, SubmittedRequest
from ...process.temporary_folder import temporary_folder
from ...results.durable.records import Event, delta_of
from ...server_settings import ServerSettings
from .engine_process import ENGINE_SOCKET, EngineProcess
from .link import Link, pack_params, read_error, read_stats

logger = logging.getLogger("splitfuse.engine")
_MAX_DEATHS = 2  # engines that died under one request, which may be the cause
_MAX_FAILED_STARTS = 3  # in a row; then this process ends, too
_AGAIN_S = 0.1


class Mirror(Request):
    """Output of a request in the engine's process, as far as its front knows it. FrontCore is its writer."""

    __slots__ = ("forced_from", "held", "slot")

    def __init__(self, **fields: Any) -> None:
        super().__init__(**fields)
        self.slot = -1  # number on the link; none yet
        self.forced_from: int | None = None
        self.held: OutputDelta | None = None  # last delta, which waits for the engine's word of the end

    def follow(self, token_ids: Sequence[int], now: float) -> None:
        """Append tokens."""
        if self.first_token_time is None:
            self.first_token_time = now
        self.last_token_time = now
        self.token_ids.extend(token_ids)

    def end(self, reason: str, stop_reason: int | str | None = None, *, num_dropped: int = 0) -> None:
        """Note the end, without the last tokens."""
        self.status, self.finished_time = Status.FINISHED, time.monotonic()
        self.finish_reason, self.stop_reason = reason, stop_reason
        del self.token_ids[len(self.token_ids) - num_dropped :]

    def known(self) -> list[Any]:
        """Return the fields of its KnownOutput."""
        tokens = self.token_ids[self.num_prompt_tokens :]
        return [tokens, self.forced_from, self.first_token_time, self.last_token_time, self.is_finished]


@dataclass
class Submission:
    """Request that has not ended. `seed` and `is_new` as in Resumed."""

    params: SamplingParams
    seed: int | None
    is_new: bool
    mirrors: dict[int, Mirror] = field(default_factory=dict)  # by index; outputs that ended before are left out
    answer: "asyncio.Future[None] | None" = None  # until the engine has taken or refused it
    num_deaths: int = 0  # engines that died under the request

    def unfinished(self) -> list[Mirror]:
        """Outputs that have not ended."""
        return [mirror for mirror in self.mirrors.values() if not mirror.is_finished]


class FrontCore:
    """EngineCore's part that AsyncEngine uses. `link` is the connection, None without one."""

    def __init__(self, config: ResolvedConfig, outputs: OutputProcessor) -> None:
        self.config, self.cost_model, self.pacer, self.scheduler = config, CostModel(), Pacer(), self
        self.link: Link | None = None
        self.found: dict[int, RequestMetrics] = {}  # metrics that FrontEngine.refresh got, by index
        self.submissions: dict[str, Submission] = {}
        self._outputs = outputs
        self._mirrors: dict[int, Mirror] = {}  # by slot
        self._num_slots = 0

    # What AsyncEngine, PromptReader and EngineView ask.

    @property
    def num_unfinished(self) -> int:
        """Number of requests that have not ended."""
        return len(self.submissions)

    @property
    def running(self) -> list[Mirror]:
        """Outputs that have begun."""
        return [mirror for mirror in self._mirrors.values() if mirror.first_scheduled_time is not None]

    @property
    def waiting(self) -> list[Mirror]:
        """Outputs that have not begun, background ones last."""
        waiting = [mirror for mirror in self._mirrors.values() if mirror.first_scheduled_time is None]
        return sorted(waiting, key=lambda mirror: mirror.is_background)

    def has(self, request_id: str) -> bool:
        """True if this id is in use."""
        return bool((submission := self.submissions.get(request_id)) and submission.mirrors)

    def metrics(self, _request_id: str) -> dict[int, RequestMetrics]:
        """Return what FrontEngine.refresh has found."""
        return self.found

    def add(self, requests: list[Any], *, predicted_ttft: float | None = None) -> None:
        """Hand a request to the engine."""
        submission = self.submissions[requests[0].request_id]
        submission.mirrors = {mirror.index: mirror for mirror in requests}
        for mirror in requests:
            self._outputs.add(mirror)
        self.send(submission)

    def send(self, submission: Submission) -> None:
        """Hand a request, with its tokens so far, to the engine."""
        mirrors, params = submission.mirrors, submission.params
        first = next(iter(mirrors.values()))
        base, self._num_slots = self._num_slots, self._num_slots + params.n
        for mirror in submission.unfinished():
            self._mirrors.pop(mirror.slot, None)
            mirror.slot = base + mirror.index
            self._mirrors[mirror.slot] = mirror
        ended: list[Any] = [[], None, None, None, True]
        fields = {
            "params": pack_params(params),
            "seed": first.seed if submission.seed is None else submission.seed,
            "is_new": submission.is_new,
            "tenant": first.tenant,
            "arrival_time": first.arrival_time,
            "outputs": [mirrors[index].known() if index in mirrors else ended for index in range(params.n)],
        }
        self._tell(["submit", first.request_id, base, fields], first.token_ids[: first.num_prompt_tokens])

    def _tell(self, message: list[Any], words: Sequence[int] = ()) -> None:
        if self.link is not None:
            self.link.send(message, words)

    def abort(self, request_id: str) -> list[OutputDelta]:
        """End a request here and there."""
        self._tell(["abort", request_id, None])
        return self.end(request_id, "abort")

    def end(self, request_id: str, reason: str, error: RequestFailedError | None = None) -> list[OutputDelta]:
        """End a request here."""
        submission, deltas = self.submissions.get(request_id), []
        for mirror in [] if submission is None else submission.unfinished():
            mirror.end(reason)
            progress = Progress(mirror)
            deltas.append(self._outputs.delta(progress, self._outputs.decode(progress)))
            deltas[-1].error = error
            self._forget(mirror)
        return deltas

    def drop(self, request_id: str) -> None:
        """Drop a request that was refused, here and there."""
        self._tell(["abort", request_id, None])
        if (submission := self.submissions.get(request_id)) is not None:
            for mirror in submission.unfinished():
                self._forget(mirror)
            self.submissions.pop(request_id, None)

    def _forget(self, mirror: Mirror) -> None:
        self._mirrors.pop(mirror.slot, None)
        self._outputs.forget(mirror)
        submission = self.submissions[mirror.request_id]
        if not any(other.slot in self._mirrors for other in submission.mirrors.values()):
            del self.submissions[mirror.request_id]
            if submission.answer is not None and not submission.answer.done():
                submission.answer.set_result(None)

    # What the engine's process tells.

    def began(self, slot: int, time: float, num_cached_tokens: int) -> None:
        """Note an output's first step."""
        if (mirror := self._mirrors.get(slot)) is not None and mirror.first_scheduled_time is None:
            mirror.first_scheduled_time, mirror.num_cached_tokens = time, num_cached_tokens

    def deltas(self, words: Sequence[int], records: Sequence[Any]) -> Iterator[OutputDelta]:
        """Yield the deltas of a frame: pairs of a slot and its token, then records."""
        now, pairs = time.monotonic(), iter(words)
        for slot, token_id in zip(pairs, pairs, strict=True):
            mirror = self._mirrors.get(slot)
            if mirror is not None and mirror.held is None:
                delta = self._advanced(mirror, RowOutput((token_id,)), now)
                if delta is not None:
                    yield delta
        for _, slot, event in records:
            mirror = self._mirrors.get(slot)
            if mirror is not None and (delta := self._read(mirror, event, now)) is not None:
                yield delta

    def held_deltas(self) -> list[OutputDelta]:
        """Return the last deltas that wait for an engine that has died."""
        mirrors = [mirror for mirror in self._mirrors.values() if mirror.held is not None]
        for mirror in mirrors:
            self._forget(mirror)
        return [mirror.held for mirror in mirrors if mirror.held is not None]

    def _advanced(self, mirror: Mirror, output: RowOutput, now: float) -> OutputDelta | None:
        """Return the delta of a mirror's tokens; None if it waits for the engine's word of its end."""
        if output.token_ids:
            mirror.follow(output.token_ids, now)
        progress = Progress(mirror, output)
        decoded = self._outputs.decode(progress)
        if decoded.stop is None and not decoded.has_failed:
            return self._outputs.delta(progress, decoded)
        has_ended = mirror.is_finished
        mirror.end("error" if decoded.has_failed else "stop", decoded.stop, num_dropped=decoded.num_dropped)
        delta = self._outputs.delta(progress, decoded)
        if has_ended:
            return delta
        mirror.held = delta
        self._tell(["abort", mirror.request_id, mirror.index])
        return None

    def _read(self, mirror: Mirror, event: Event, now: float) -> OutputDelta | None:
        told, delta = delta_of(event, request_id=mirror.request_id), mirror.held
        if delta is not None and told.finish_reason is None:
            return None  # tokens behind a stop string
        if delta is None:
            mirror.forced_from = told.forced_from if mirror.forced_from is None else mirror.forced_from
            if told.finish_reason is not None:
                mirror.end(told.finish_reason, told.stop_reason)
            output = RowOutput(told.token_ids, told.logprobs, forced_from=told.forced_from)
            if (delta := self._advanced(mirror, output, now)) is None:
                return None
            delta.prompt_logprobs, delta.error = told.prompt_logprobs, delta.error or told.error
        if told.finish_reason is not None:
            assert told.metrics is not None
            delta.metrics = replace(told.metrics, num_output_tokens=mirror.num_output_tokens)
            self._forget(mirror)
        return delta


class FrontEngine(AsyncEngine):
    """AsyncEngine for routes. Its parts are in the engine's process, whose app answers the routes that need them."""

    def __init__(self, settings: ServerSettings) -> None:
        super().__init__(settings.engine_config())
        self._temporary = contextlib.ExitStack()
        self.folder = str(self._temporary.enter_context(temporary_folder()))
        self._process = EngineProcess(settings, self.folder)
        self._facts: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._link: Link | None = None
        self._state: dict[str, Any] = {}
        self._calls: dict[str, asyncio.Future[Any]] = {}
        self._figures: dict[str, Any] = {}
        self._has_started = False  # the process that runs
        self._tasks: list[asyncio.Task[None]] = []

    # Start and end.

    async def start(self) -> None:
        """Start the engine's process and wait until it takes requests. Raises ConfigError."""
        self._tasks = [asyncio.create_task(work) for work in (self._run_process(), self._keep_linked())]
        try:
            facts = await self._facts
            await asyncio.get_running_loop().run_in_executor(self._executor, self._take, facts)
        except SplitfuseError:
            await self.stop()
            raise
        self._on_state(self._state)
        if self.generates:
            self.prompts.prepare()
        self.is_loaded = True
        await self.refresh()

    def _take(self, facts: Mapping[str, Any]) -> None:
        """Read the model's files, but not its weights, in a thread."""
        config: Any = {
            name: tuple(value) if isinstance(value, list) else value for name, value in facts["config"].items()
        }
        self.config, loaded = ResolvedConfig(**config), facts["loaded"]
        model: Any = SimpleNamespace(**facts["model"])
        model.quantization = model.quantization and SimpleNamespace(name=model.quantization)
        self.model_config = model
        cache = SimpleNamespace(num_blocks=loaded["num_blocks"], block_size=self.config.block_size)
        device = _Device(loaded.pop("device"))
        own: Any = {"device": device, "cache": cache, "model_config": self.model_config, "memory": None}
        self.loaded: Any = SimpleNamespace(**loaded, **own)
        self.max_model_len = loaded["max_model_len"]
        self._generates = facts["generates"]
        self.default_sampling_params = facts["default_sampling_params"]
        self.default_sampling_source = facts["default_sampling_source"]
        if facts["tokenizer"] is not None:
            self.tokenizer = Tokenizer(Path(facts["tokenizer"]), chat_template=self.config.chat_template)
            model.eos_token_ids += self.tokenizer.end_ids
        compiled: Future[Any] = Future()  # the engine's process compiles grammars, and refuses what it cannot
        compiled.set_result(SimpleNamespace(begin=lambda **_: None))
        grammars: Any = SimpleNamespace(compile=lambda _: compiled, stats=dict)
        self._input_processor = InputProcessor(
            tokenizer=self.tokenizer,
            grammars=None if self.tokenizer is None else grammars,
            model_config=self.model_config,
            max_model_len=self.max_model_len,
            max_cache_tokens=cache.num_blocks * cache.block_size,
            seed=self.config.seed,
            generates=self.generates,
            request_class=Mirror,
        )
        self._core = FrontCore(self.config, OutputProcessor(self.tokenizer))
        core: Any = self._core
        pipeline: Any = SimpleNamespace(core=core, launcher=None, has_work=False)
        self.prompts = PromptReader(
            core, self._input_processor, self.tokenizer, self._queue_limits, self._input_threads
        )
        self.pipeline, self.view = pipeline, EngineView(pipeline)

    async def prepare(self) -> None:
        """Like AsyncEngine's."""
        with contextlib.suppress(UnavailableError):
            await self.call("prepare")

    async def stop(self) -> None:
        """Abort all requests and end the engine's process."""
        if self.is_loaded:
            self.abort_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._link is not None:
            self._link.close()
        self._process.close()
        self._temporary.close()
        await super().stop()

    # The engine's process.

    async def _run_process(self) -> None:
        """Keep the process running. The engine has died if it fails to start a few times."""
        num_failed = 0
        while num_failed < _MAX_FAILED_STARTS:
            self._has_started = False
            status = await self._process.run()
            num_failed = 0 if self._has_started else num_failed + 1
            logger.error("the engine's process ended with status %d; another one starts", status)
            for submission in self.core.submissions.values() if self.is_loaded else ():
                submission.num_deaths += 1
        self._die(UnavailableError("the engine's process does not start"))

    async def _keep_linked(self) -> None:
        """Connect whenever there is no connection."""
        loop = asyncio.get_running_loop()
        while True:
            lost = asyncio.Event()
            self._link = link = Link(self._on_frame, lost.set)
            with contextlib.suppress(OSError):
                await loop.create_unix_connection(
                    partial(lambda made: made, link), str(Path(self.folder, ENGINE_SOCKET))
                )
                await lost.wait()
                self._unlink()
            await asyncio.sleep(_AGAIN_S)

    def _unlink(self) -> None:
        if self.is_loaded:
            self.core.link = None
        for call in self._calls.values():
            if not call.done():
                call.set_exception(UnavailableError("the engine's process has ended; another one starts"))
        self._calls.clear()

    def _die(self, error: Exception) -> None:
        if not self._facts.done():
            self._facts.set_exception(error)
        elif self.is_loaded:
            self._fail(*self.core.submissions)
        self._dead.set()

    def _fail(self, *request_ids: str) -> None:
        """Fail requests with the engine."""
        error_id = new_error_id()
        if request_ids:
            logger.error("requests failed with the engine's process, error id %s", error_id)
        for request_id in request_ids:
            self._fail_with(request_id, EngineDeadError(f"the engine died (error id {error_id})", error_id=error_id))

    def _fail_with(self, request_id: str, error: RequestFailedError) -> None:
        if (answer := self.core.submissions[request_id].answer) is None:
            self._send(self.core.end(request_id, "error", error))
        elif not answer.done():
            answer.set_exception(error)

    def _send(self, deltas: Sequence[OutputDelta]) -> None:
        """Deliver deltas."""
        self._dispatch.send(deltas)
        if not self.core.num_unfinished:
            self._idle.set()

    def _on_frame(self, records: list[Any], words: Sequence[int], figures: Sequence[float]) -> None:
        late = []
        for record in records:
            if record[0] == "delta":
                late.append(record)
            else:
                getattr(self, f"_on_{record[0]}")(*record[1:])
        if words or late:
            self._send(list(self.core.deltas(words, late)))
        for stats in read_stats(figures) if self.is_loaded else ():
            self._dispatch.send_stats(stats)

    def _on_facts(self, facts: dict[str, Any]) -> None:
        if not self._facts.done():
            self._facts.set_result(facts)

    def _on_failed(self, error: Sequence[Any]) -> None:
        logger.log(logging.ERROR if self.is_loaded else logging.DEBUG, "the engine cannot start: %s", error[1])
        self._die(read_error(error))

    def _on_state(self, state: dict[str, Any]) -> None:
        before, self._state = self._state, state
        if not hasattr(self, "pipeline"):
            return  # the first one, with the facts
        self.config = replace(self.config, fingerprint=state["fingerprint"])
        self.weights_version, self.paused = state["weights_version"], state["paused"]
        self.weights_path = Path(state["weights_path"]) if state["weights_path"] is not None else None
        if self.core.link is self._link:
            return
        self.core.link, self._has_started = self._link, True
        self._send(self.core.held_deltas())
        for request_id, submission in list(self.core.submissions.items()):
            # Weights that were loaded later are gone.
            if submission.num_deaths > _MAX_DEATHS or before["fingerprint"] != state["fingerprint"]:
                self._fail(request_id)
            elif submission.mirrors:
                submission.is_new &= submission.answer is not None
                self.core.send(submission)

    def _on_began(self, slot: int, time: float, num_cached_tokens: int) -> None:
        self.core.began(slot, time, num_cached_tokens)

    def _on_answer(self, call_id: str, value: Any, error: Sequence[Any] | None) -> None:
        """Answer a call, or a submission that waits; else the error is one of a request that an engine had taken."""
        submission = self.core.submissions.get(call_id)
        future = self._calls.pop(call_id, None) if submission is None else submission.answer
        if submission is not None:
            submission.answer = None
        if future is not None and not future.done():
            if error is None:
                future.set_result(value)
            else:
                future.set_exception(read_error(error))
        elif error is not None and submission is not None:
            error_id = new_error_id()
            logger.error("request %s cannot go on, error id %s: %s", call_id, error_id, error[1])
            self._fail_with(call_id, RequestFailedError(f"{error[1]} (error id {error_id})", error_id=error_id))

    async def call(self, name: str, *values: Any) -> Any:
        """Call the engine's process. Raises its error, and UnavailableError."""
        if self.core.link is None:
            raise UnavailableError("the engine's process starts; try again soon")
        call_id = uuid.uuid4().hex
        self._calls[call_id] = asyncio.get_running_loop().create_future()
        self.core.link.send([name, call_id, *values])
        return await self._calls[call_id]

    async def refresh(self, request_id: str | None = None) -> None:
        """Ask for the figures that `stats` returns, and a request's for `view.metrics`."""
        with contextlib.suppress(UnavailableError):
            self._figures = await self.call("stats")
            if request_id is not None:
                found = [delta_of(event, request_id=request_id) for event in await self.call("metrics", request_id)]
                self.core.found = {delta.index: delta.metrics for delta in found if delta.metrics is not None}

    # State.

    @property
    def core(self) -> FrontCore:  # type: ignore[override]
        """Requests that have not ended."""
        return self._core

    @property
    def _is_stepping(self) -> bool:
        return self.is_loaded and self.core.link is not None and not self.has_died

    @property
    def is_healthy(self) -> bool:
        """False while there is no engine, or it makes no progress."""
        return not self.is_loaded or (self._is_stepping and bool(self._state["is_healthy"]))

    def stats(self) -> dict[str, Any]:
        """Return the last figures that `refresh` got."""
        state = {"status": "draining" if self.is_draining else "serving", "weights_version": self.weights_version}
        return {**self._figures, **state, "paused": self.paused}

    @property
    def generates(self) -> bool:
        """Like AsyncEngine's."""
        return bool(self._generates)

    @property
    def variants(self) -> list[Any]:
        """Adapters that requests can name."""
        names = ("name", "path", "digest", "created")
        return [SimpleNamespace(**dict(zip(names, values, strict=True))) for values in self._state["variants"]]

    def fingerprint_of(self, variant: str | None) -> str:
        """Like AsyncEngine's."""
        return self.fingerprint if variant is None else str(self._state["variant_fingerprints"].get(variant))

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
        """Like AsyncEngine's, and return once the engine has taken the request. Raises its refusal, too."""
        self._check_admission(params, is_new=False)
        request_id, loop = request_id or uuid.uuid4().hex, asyncio.get_running_loop()
        if request_id in self.core.submissions:
            raise ValueError(f"request_id {request_id!r} is in use")
        seed, is_new = (None, True) if resumed is None else (resumed.seed, resumed.is_new)
        submission = Submission(params, seed, is_new, answer=loop.create_future())
        early: list[OutputDelta] | None = []

        def gate(delta: OutputDelta) -> None:
            if early is None:
                sink(delta)
            else:
                early.append(delta)

        def open_gate() -> None:
            nonlocal early
            held, early = early, None
            for delta in held or ():
                sink(delta)

        self.core.submissions[request_id] = submission
        fields: Any = {"tenant": tenant, "resumed": resumed, "arrival_time": arrival_time}
        try:
            submitted = await super().submit(prompt, params, gate, request_id=request_id, **fields)
            assert submission.answer is not None
            await submission.answer
        except BaseException:
            self.core.drop(request_id)
            self._dispatch.forget(request_id)
            self._send(())
            raise
        loop.call_soon(open_gate)  # once the caller has its answer
        return submitted

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Like AsyncEngine's."""
        submission = self.core.submissions.get(request_id)
        if submission is not None and submission.answer is None:
            self._send(self.core.abort(request_id))

    def abort_all(self) -> None:
        """Like AsyncEngine's; requests that the engine has not taken are refused."""
        for request_id, submission in list(self.core.submissions.items()):
            self.abort(request_id)
            if submission.answer is not None and not submission.answer.done():
                submission.answer.set_exception(UnavailableError("the server is shutting down"))


class _Device(str):
    """Name of the engine's device, as torch.device has one."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """Kind of device."""
        return self.partition(":")[0]
