"""An engine without a model: deterministic tokens, released one by one if a test wants, faults on demand.

Has the public face of AsyncEngine, so the server cannot tell. Token ids are bytes; the answer to a prompt is a fixed
function of the prompt, the output's index and the position.
"""

import asyncio
import contextlib
import dataclasses
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from types import SimpleNamespace
from typing import Any

from splitfuse.engine.checks import check_token_ids
from splitfuse.engine.config import DEMO_FOLDER, EngineConfig, ResolvedConfig
from splitfuse.engine.core.outputs import OutputDelta, PromptLogprobs, RequestMetrics, StepStats, TokenLogprobs
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.errors import (
    ContextLengthError,
    InvalidRequestError,
    QueueFullError,
    RequestFailedError,
    UnavailableError,
)
from splitfuse.engine.language.chat.chat_form import form_facts
from splitfuse.engine.language.chat.template import ChatTemplate

VOCAB_SIZE = 300  # ids from 256 on have no text
SCRIPTED = 1000  # ids of a script's pieces begin here
MAX_MODEL_LEN = 512
NUM_BLOCKS = 100
BLOCK_SIZE = 16
_FORMS: dict[str, dict[str, Any]] = {}  # what chat templates say of answers, by their text


TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"


@cache
def _template() -> ChatTemplate:
    """Return the one template of all tokenizers: what it takes is derived from its answers."""
    return ChatTemplate(TEMPLATE, special_tokens={})


class FakeTokenizer:
    has_chat_template = True
    special_tokens = {"eos_token": "<eos>"}  # noqa: RUF012

    def __init__(self) -> None:
        self.chat_template = _template()
        self.pieces: list[str] = []  # of scripts

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    byte_ids: frozenset[int] = frozenset()

    def piece(self, token_id: int) -> str:
        return ""

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        return b"".join(map(self._bytes_of, token_ids)).decode("utf-8", "replace")

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id >= SCRIPTED:
            return self.pieces[token_id - SCRIPTED].encode()
        return bytes([token_id]) if token_id < 256 else b""

    def scripted_id(self, piece: str) -> int:
        """Return the id of a piece of a script."""
        if piece not in self.pieces:
            self.pieces.append(piece)
        return SCRIPTED + self.pieces.index(piece)

    def special_ids(self, texts: Sequence[str]) -> dict[str, int]:
        return {}

    def render_chat(self, messages: Sequence[Mapping[str, Any]]) -> str:
        return self.chat_template.render(messages)


@dataclass
class FakeHandle:
    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    params: SamplingParams
    arrival_time: float
    seed: int = 0
    started: bool = False
    max_tokens: int = 64
    parent: Mapping[str, Any] | None = None
    aborted: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def lasting_params(self) -> SamplingParams:
        return self.params


def answer(prompt_token_ids: Sequence[int], index: int, position: int) -> int:
    """Return the token at this position of the answer, a lower-case letter."""
    return 97 + (sum(prompt_token_ids) + 7 * index + 3 * position * position) % 26


def answer_text(prompt: str, *, num_tokens: int, index: int = 0) -> str:
    """Return the whole answer."""
    return "".join(chr(answer(list(prompt.encode()), index, position)) for position in range(num_tokens))


def _scores(handle: FakeHandle) -> PromptLogprobs:
    """Each prompt token at -0.25, third to the likeliest ones, which are a, b, …"""
    num_top = handle.params.prompt_logprobs or 0
    scores = PromptLogprobs(num_top)
    for token_id in handle.prompt_token_ids[1:]:
        scores.add([token_id], [-0.25], [3], [97 + i for i in range(num_top)], [-0.5 - i for i in range(num_top)])
    return scores


class FakeEngine:
    def __init__(self, config: EngineConfig | None = None) -> None:
        self.config = ResolvedConfig.of(config or EngineConfig(), device="cpu", fingerprint="fake")
        self.tokenizer = FakeTokenizer()
        self.weights_path = DEMO_FOLDER
        self.generates = True
        self.variants: list[Any] = []
        self.max_model_len = MAX_MODEL_LEN
        self.default_sampling_params: dict[str, Any] = {}
        self.model_config = SimpleNamespace(vocab_size=VOCAB_SIZE, hf_config={"model_type": "fake"}, quantization=None)
        self.observers: list[Any] = []
        self.observe = self.observers.append
        self.prompts = self.view = self
        cache = SimpleNamespace(num_blocks=NUM_BLOCKS, block_size=BLOCK_SIZE)
        self.loaded = SimpleNamespace(
            max_model_len=MAX_MODEL_LEN, device="cpu", dtype="float32", cache=cache, inexact=None
        )
        self.is_healthy = True
        self.is_failing = False
        self.is_started = False
        self.is_draining = False
        self.fingerprint = "fake"
        self.weights_version = 0
        self.paused: str | None = None
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.start_error: Exception | None = None
        self.submit_error: Exception | None = None
        self.queue_is_full = False
        self.fits: int | None = None  # most new tokens
        self.fail_at: int | None = None  # position at which every request breaks
        self.script: list[str] | None = None  # the answer to every prompt, a token each, instead of letters
        self.leave_out_last_token = False  # the end comes as a delta of its own, without a token
        self.handles: dict[str, FakeHandle] = {}
        self.tenants: list[str] = []  # one per request, in order
        self.params: list[SamplingParams] = []  # like tenants
        self.aborted: list[str] = []
        self.abort_seen = asyncio.Event()
        self.submitted = asyncio.Event()
        self.drain_seen = asyncio.Event()
        self.died = asyncio.Event()
        self.num_submitted = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._num_allowed: float = math.inf
        self._allowed = asyncio.Condition()
        self._idle = asyncio.Event()
        self._idle.set()

    # What tests turn.

    def hold(self) -> None:
        """Let no further token out, of any request."""
        self._num_allowed = 0

    def fingerprint_of(self, adapter: str | None) -> str:
        return self.fingerprint

    def part(self, kind: type) -> None:
        return None

    async def allow(self, num_tokens: float = math.inf) -> None:
        """Let `num_tokens` further tokens out, over all requests."""
        async with self._allowed:
            self._num_allowed += num_tokens
            self._allowed.notify_all()

    # The face of AsyncEngine.

    async def start(self) -> None:
        await self.may_start.wait()
        if self.start_error is not None:
            raise self.start_error
        self.is_started = True

    async def stop(self) -> None:
        self.is_draining = True
        for request_id in list(self.handles):
            self.abort(request_id)
        if self._tasks:
            await asyncio.wait(self._tasks)
        self.is_started = False

    @property
    def has_died(self) -> bool:
        return self.died.is_set()

    async def wait_dead(self) -> None:
        await self.died.wait()

    async def drain(self, timeout: float) -> None:  # noqa: ASYNC109  AsyncEngine's signature
        self.is_draining = True
        self.drain_seen.set()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), timeout)

    async def submit(
        self,
        prompt: str | Sequence[int] | Mapping[str, Any],
        params: SamplingParams,
        sink: Callable[[OutputDelta], None],
        *,
        request_id: str | None = None,
        tenant: str = "",
        resumed: Any = None,
        arrival_time: float | None = None,
    ) -> FakeHandle:
        await asyncio.sleep(0)
        prompt = prompt["prompt"] if isinstance(prompt, Mapping) else prompt
        self._check(prompt, params)
        token_ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)
        num_kept = params.truncate_prompt_tokens or len(token_ids)
        token_ids = token_ids[-num_kept:] if params.truncation_side == "left" else token_ids[:num_kept]
        self.num_submitted += 1
        request_id = request_id or f"r{self.num_submitted}"
        assert request_id not in self.handles
        handle = FakeHandle(
            request_id, prompt if isinstance(prompt, str) else None, token_ids, params, time.monotonic()
        )
        self.handles[request_id] = handle
        self.tenants.append(tenant)
        self.params.append(params)
        self.submitted.set()
        self._idle.clear()
        task = asyncio.create_task(self._run(handle, sink))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return handle

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self.tokenizer.encode(text)

    async def decode(self, token_ids: Sequence[int]) -> str:
        return self.tokenizer.decode(token_ids)

    async def render_chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> str:
        return self.tokenizer.chat_template.render(messages, **options)

    async def chat_form(self) -> dict[str, Any]:
        template = self.tokenizer.chat_template
        if template.source not in _FORMS:
            _FORMS[template.source] = form_facts(template)
        return _FORMS[template.source]

    def abort(self, request_id: str, index: int | None = None) -> None:
        if request_id in self.handles:
            self.aborted.append(request_id)
            self.abort_seen.set()
            self.handles[request_id].aborted.set()

    async def generate(
        self, prompt: str, params: SamplingParams, *, request_id: str | None = None
    ) -> AsyncIterator[OutputDelta]:
        raise NotImplementedError
        yield

    @property
    def is_ready(self) -> bool:
        return self.is_started and not self.is_draining and self.is_healthy

    @property
    def num_unfinished(self) -> int:
        return len(self.handles)

    def stats(self) -> dict[str, Any]:
        num_running = sum(handle.started for handle in self.handles.values())
        return {
            "num_running": num_running,
            "num_waiting": len(self.handles) - num_running,
            "num_blocks": NUM_BLOCKS,
            "num_used_blocks": num_running,
            "block_size": BLOCK_SIZE,
            "steps": [],
        }

    def counts_of(self, tenant: str) -> dict[str, int]:
        return dict.fromkeys(("num_running", "num_waiting"), 0)

    def _check(self, prompt: str | Sequence[int], params: SamplingParams) -> None:
        if self.is_draining or not self.is_started:
            raise UnavailableError("no")
        if self.submit_error is not None:
            raise self.submit_error
        if self.queue_is_full:
            raise QueueFullError("the queue is full", retry_after_s=2.5)
        if self.fits is not None and (params.max_tokens or 0) > self.fits:
            name = params.name_of("max_tokens")
            raise ContextLengthError(f"set {name} to {self.fits} or less", param=name)
        params.check_against(vocab_size=VOCAB_SIZE)
        if not prompt:
            raise InvalidRequestError("prompt is empty", param=params.name_of("prompt"))
        if not isinstance(prompt, str):
            check_token_ids(prompt, vocab_size=VOCAB_SIZE, param="prompt")
        if len(prompt) + (params.max_tokens or 1) > MAX_MODEL_LEN:
            raise ContextLengthError(f"{len(prompt)} tokens are too many", param=params.name_of("prompt"))

    async def _run(self, handle: FakeHandle, sink: Callable[[OutputDelta], None]) -> None:
        params = handle.params
        num_tokens = (
            self._num_scripted(params)
            or params.max_tokens
            or min(params.default_max_tokens or MAX_MODEL_LEN, MAX_MODEL_LEN - len(handle.prompt_token_ids))
        )
        first_token_time: float | None = None
        unfinished = list(range(params.n))
        for position in range(num_tokens):
            for index in list(unfinished):
                if not await self._may_go_on(handle):
                    self._end(handle, sink, unfinished, "abort", position, first_token_time)
                    return
                handle.started = True
                first_token_time = first_token_time or time.monotonic()
                if self.fail_at == position:
                    self._end(handle, sink, unfinished, "error", position, first_token_time)
                    return
                is_last = position == num_tokens - 1
                if is_last:
                    unfinished.remove(index)
                    if not unfinished:
                        self._forget(handle)
                self._token(handle, sink, index, position, is_last, first_token_time)
        self._idle_if_empty()

    def _num_scripted(self, params: SamplingParams) -> int:
        limit = params.max_tokens or params.default_max_tokens
        return 0 if self.script is None else min(len(self.script), limit or len(self.script))

    def _token(
        self,
        handle: FakeHandle,
        sink: Callable[[OutputDelta], None],
        index: int,
        position: int,
        is_last: bool,
        first_token_time: float,
    ) -> None:
        token_id = answer(handle.prompt_token_ids, index, position)
        text, reason = chr(token_id), "length"
        if self.script is not None:
            text = self.script[position]
            token_id, reason = (
                self.tokenizer.scripted_id(text),
                "stop" if position == len(self.script) - 1 else "length",
            )
        logprobs = None
        if handle.params.logprobs is not None:
            top = tuple((97 + rank, -0.5 - rank) for rank in range(handle.params.logprobs))
            logprobs = (TokenLogprobs(token_id, -math.inf if position == 0 else -0.5, top),)
        prompt_logprobs = None
        if handle.params.prompt_logprobs is not None and (index, position) == (0, 0):
            prompt_logprobs = _scores(handle)
        end = {"finish_reason": reason, "metrics": self._metrics(handle, position + 1, first_token_time)}
        if is_last and self.leave_out_last_token:
            sink(OutputDelta(handle.request_id, index, text, (token_id,), logprobs))
            sink(OutputDelta(handle.request_id, index, "", (), **end))
        else:
            sink(
                OutputDelta(
                    handle.request_id,
                    index,
                    text,
                    (token_id,),
                    logprobs,
                    **(end if is_last else {}),
                    prompt_logprobs=prompt_logprobs,
                )
            )
        now = time.monotonic()
        ttfts = () if position else (0.01,)
        stats = StepStats(position, now, 0.001, 5, 1, 1, 0, 1, NUM_BLOCKS, 0, num_output_tokens=1, ttfts=ttfts)
        for observer in self.observers:
            observer.on_step(stats)
            if is_last:
                observer.on_output_finished(end["metrics"], reason)

    def _end(
        self,
        handle: FakeHandle,
        sink: Callable[[OutputDelta], None],
        unfinished: list[int],
        reason: str,
        position: int,
        first_token_time: float | None,
    ) -> None:
        self._forget(handle)
        error = RequestFailedError("secret inside text", error_id="e" * 8) if reason == "error" else None
        for index in unfinished:
            metrics = self._metrics(handle, position, first_token_time)
            sink(OutputDelta(handle.request_id, index, "", (), finish_reason=reason, metrics=metrics, error=error))
        self._idle_if_empty()

    async def _may_go_on(self, handle: FakeHandle) -> bool:
        """Wait for permission to emit one token; False if the request was aborted meanwhile."""
        await asyncio.sleep(0)
        if self._num_allowed <= 0 and not handle.aborted.is_set():
            aborted = asyncio.ensure_future(handle.aborted.wait())
            allowed = asyncio.ensure_future(self._wait_allowed())
            await asyncio.wait([aborted, allowed], return_when=asyncio.FIRST_COMPLETED)
            aborted.cancel()
            allowed.cancel()
        if handle.aborted.is_set():
            return False
        self._num_allowed -= 1
        return True

    async def _wait_allowed(self) -> None:
        async with self._allowed:
            await self._allowed.wait_for(lambda: self._num_allowed > 0)

    def _forget(self, handle: FakeHandle) -> None:
        self.handles.pop(handle.request_id, None)

    def _idle_if_empty(self) -> None:
        if not self.handles:
            self._idle.set()

    def metrics(self, request_id: str) -> dict[int, RequestMetrics]:
        handle = self.handles.get(request_id)
        return {} if handle is None else {0: dataclasses.replace(self._metrics(handle, 0, None), finished_time=None)}

    def _metrics(self, handle: FakeHandle, num_tokens: int, first_token_time: float | None) -> RequestMetrics:
        return RequestMetrics(
            arrival_time=handle.arrival_time,
            first_scheduled_time=first_token_time,
            first_token_time=first_token_time,
            finished_time=time.monotonic(),
            num_prompt_tokens=len(handle.prompt_token_ids),
            num_output_tokens=num_tokens,
            num_cached_tokens=2,
            num_preemptions=1,
        )
