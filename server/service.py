"""What the routes share: settings, the engine once it is there, kept results, metrics, and whether work is taken.

Imports no torch: the engine's module is imported in a thread by `load`, while the port already answers.
"""

import asyncio
import dataclasses
import importlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from starlette.requests import HTTPConnection

from ..engine.core.sampling_params import SamplingParams
from ..engine.errors import ConfigError, InvalidRequestError, ModelNotFoundError
from .batches.batches import Batches
from .batches.shared_batches import SharedBatches
from .http.auth import KeyRing
from .http.connection_limit import ConnectionLimit
from .http.errors import NotReadyError
from .http.json_writer import JsonWriter
from .ids import new_id
from .jobs.idempotency import IdempotencyKey
from .jobs.job import Check, Job, raise_failure
from .jobs.result_size import bounded
from .jobs.signal import Signal
from .metrics import CACHE_SETTINGS, Metrics
from .page.policy_comparison import PolicyComparison
from .page.step_broadcast import StepBroadcast
from .settings import Settings
from .storage.durable_results import DurableResults
from .storage.kept_request import KeptKind, KeptRequest
from .storage.memory_store import MemoryStore
from .storage.results import results_of
from .storage.resumption import Resumption
from .storage.shared_results import SharedResults
from .telemetry.listeners import listeners_of
from .telemetry.request_ends import RequestEnds

if TYPE_CHECKING:
    from ..engine.serving.async_engine import AsyncEngine
    from ..engine.serving.input_processor import Prompt
    from ..engine.text.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

LINGER_S = 3.0  # a poller's Retry-After is 1 s

_WHY = {
    "loading": "the model is still loading",
    "draining": "the server is shutting down",
    "failed": "the model could not be loaded; the server's log says why",
    "stalled": "the engine makes no progress; the server's log may say why",
}


class Endpoint(Protocol):
    """What an endpoint answers to a body's fields, run in the background. For `json_slices`."""

    async def __call__(self, service: "Service", fields: Mapping[str, Any], *, owner: str) -> Any:
        """Raises what the endpoint answers as an error."""


class Service:
    """One served model. `state` is loading, ready, draining, stalled or failed."""

    def __init__(
        self,
        settings: Settings,
        engine: "AsyncEngine | None" = None,
        *,
        kinds: Mapping[str, KeptKind] | None = None,
        endpoints: Mapping[str, Endpoint] | None = None,
    ) -> None:
        """`kinds`: the APIs whose jobs are kept on disk, where `--results` names a place. `endpoints`: the paths that
        batches can ask for.
        """
        self.settings = settings
        self.keys = KeyRing(settings.keys)
        self.connection_limit = ConnectionLimit(settings.max_connections)
        self._kinds = kinds or {}
        self.results = results_of(settings, self._kinds)
        self.json = JsonWriter(max_shared_bytes=settings.max_result_bytes // 4)
        self._memory = MemoryStore(clock=time.time)
        self._endpoints = endpoints or {}
        self.batches = self._new_batches()
        speculation = settings.speculation
        self.metrics = Metrics(
            prefix=settings.metrics_prefix,
            model_name=settings.model_name,
            stats=lambda: {"connections_refused": self.connection_limit.num_refused} | self.engine_stats(),
            num_speculative_tokens=speculation.num_speculative_tokens if speculation else 0,
            cache_config={name: str(getattr(settings, name)) for name in CACHE_SETTINGS},
        )
        self.requests = RequestEnds(listeners_of(settings))
        self.steps = StepBroadcast()
        self.comparison = PolicyComparison()
        self.start_time = time.time()
        self.is_draining = False
        self.logs_load_failure = True  # False where a caller awaits `loading`
        self.loading: asyncio.Task[None] | None = None
        self._engine = engine
        self._is_loaded = False
        self._is_ours = False
        self._telling: asyncio.Task[None] | None = None  # of the ends of results

    @property
    def state(self) -> str:
        """loading, ready, draining, stalled (the engine, or its end) or failed (to load)."""
        if self.is_draining:
            return "draining"
        if self.loading is not None and self.loading.done() and not self._is_loaded:
            return "failed"
        if self._engine is None or not self._is_loaded:
            return "loading"
        return "ready" if self._engine.is_ready else "stalled"

    @property
    def engine(self) -> "AsyncEngine":
        """The engine, also while it drains. Raises NotReadyError before it is loaded."""
        if self._engine is None or not self._is_loaded:
            raise self.not_ready()
        return self._engine

    @property
    def tokenizer(self) -> "Tokenizer":
        """The model's tokenizer. Raises InvalidRequestError if it has none."""
        tokenizer = self.engine.tokenizer
        if tokenizer is None:
            raise InvalidRequestError("this model has no tokenizer; send token ids to /generate or /v1/completions")
        return tokenizer

    def _new_batches(self) -> Batches:
        """Where the results are."""
        settings, answer = self.settings, self._answer_batched
        if isinstance(self.results, SharedResults):
            return SharedBatches(
                self.results, settings, answer, clock=time.time, may_claim=lambda: self.state == "ready"
            )
        store = self.results if isinstance(self.results, DurableResults) else self._memory
        return Batches(store, settings, answer, clock=time.time)

    @property
    def has_lost_store(self) -> bool:
        """Whether results are to be kept on disk and cannot be written there now."""
        return isinstance(self.results, DurableResults) and self.results.failure is not None

    def not_ready(self) -> NotReadyError:
        """Why no work is taken."""
        return NotReadyError(_WHY[self.state], code=self.state)

    def engine_stats(self) -> dict[str, object]:
        """The engine's snapshot, empty until it is loaded."""
        return self._engine.stats() if self._engine is not None and self._is_loaded else {}

    async def load(self) -> None:
        """Import and start the engine, unless one was given that runs already. Raises ConfigError."""
        try:
            await self._load()
        except Exception as exc:
            if self.logs_load_failure:
                # A reason that the user can fix is one line, anything else a traceback.
                reason = None if isinstance(exc, ConfigError) else exc
                logger.error("the model was not loaded: %s", exc, exc_info=reason)
            raise

    async def _load(self) -> None:
        if isinstance(self.results, DurableResults):
            await self.results.open()
            self._begin_telling(self.results)
        if self._engine is None:
            module = await asyncio.to_thread(importlib.import_module, "..engine.serving.async_engine", __package__)
            self._engine = module.AsyncEngine(self.settings.engine_config())
        assert self._engine is not None
        self._engine.observers.append(self.metrics)
        if not self._engine.is_ready:
            self._is_ours = True
            await self._engine.start()
        if isinstance(self.results, DurableResults):
            resumption = Resumption(self.results, self._engine, self._kinds, self.settings)
            await resumption.run()
            if isinstance(self.results, SharedResults):
                self.results.begin_claiming(resumption, self._engine)
        self._is_loaded = True
        if isinstance(self.results, DurableResults):
            await self.batches.resume()

    def _begin_telling(self, results: DurableResults) -> None:
        if self.settings.webhooks.urls:
            from .storage.webhooks import Webhooks  # imports httpx, which the others do not need

            webhooks = Webhooks(self.settings.webhooks, results.use, clock=time.time)
            self._telling = asyncio.create_task(webhooks.run())

    async def drain(self) -> None:
        """Take no new work; return when what runs has ended, by itself or because the drain timeout is over."""
        self.is_draining = True
        await self.batches.stop()
        if self._engine is not None and self._is_loaded:
            running = self.results.unfinished()
            await self._engine.drain(self.settings.drain_timeout)
            await self.close()
            # A poller gets a moment to fetch a result that has just been finished.
            unread = [asyncio.ensure_future(job.was_read.wait()) for job in running if job.status == "completed"]
            if unread:
                await asyncio.wait(unread, timeout=min(LINGER_S, self.settings.drain_timeout))

    async def close(self) -> None:
        """Stop the engine if `load` started it; what it has not finished is left to the next process."""
        has_crashed = self._engine is not None and self._engine.has_died
        await self.batches.stop(has_crashed=has_crashed)
        self.steps.end()
        self._memory.close()
        if self._telling is not None:
            self._telling.cancel()
        if isinstance(self.results, DurableResults):
            await self.results.close(has_crashed=has_crashed)
        if self._is_ours and self._is_loaded and self._engine is not None:
            self._is_ours = False
            await self._engine.stop()
        await asyncio.to_thread(self.requests.close)

    def check_model(self, name: object) -> None:
        """Raise unless `name` is None or one of the served model's."""
        if name is not None and not isinstance(name, str):
            raise InvalidRequestError("model must be a string", param="model")
        if name is not None and not self.settings.serves(name):
            served = ", ".join(self.settings.model_names)
            raise ModelNotFoundError(f"model {name[:100]!r} is not served here; served: {served}")

    def token_text(self, token_id: int) -> str:
        """The text of one token alone, special tokens too."""
        return self.tokenizer.decode([token_id], skip_special_tokens=False)

    def prompt_text(self, job: Job) -> str:
        """The prompt of a job that keeps it; one that came as ids or was truncated is decoded."""
        if job.prompt is not None:
            return job.prompt
        return self.tokenizer.decode(job.prompt_token_ids, skip_special_tokens=False)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        """Token ids of a text, found off the loop."""
        _ = self.tokenizer  # there is one
        return await self.engine.prompts.encode(text, add_special_tokens=add_special_tokens)

    async def decode(self, token_ids: list[int]) -> str:
        """The text of token ids, special tokens included."""
        _ = self.tokenizer
        return await self.engine.prompts.decode(token_ids)

    def new_job(
        self,
        params: SamplingParams,
        *,
        owner: str,
        changed: Signal | None = None,
        keeps_prompt: bool = False,
        key: IdempotencyKey | None = None,
        ttl_s: float | None = None,
        check: Check | None = None,
    ) -> Job:
        """A job under a new, unguessable id; not submitted yet."""
        job = Job(
            new_id("", self.settings.id_tag),
            model=self.settings.model_name,
            num_outputs=params.n,
            owner=owner,
            stream_interval=self.settings.stream_interval,
            changed=changed,
            keeps_prompt=keeps_prompt,
            idempotency_key=key,
            ttl_s=ttl_s,
            on_end=self._on_job_end,
        )
        job.check, job.on_report = check, self.metrics.on_answer_checked
        self.requests.add_job(job)
        return job

    def _on_job_end(self, job: Job) -> None:
        self.metrics.on_job_end([len(output.token_ids) for output in job.outputs])
        self.requests.job_ended(job)

    async def submit(
        self, job: Job, prompt: "Prompt", params: SamplingParams, *, user: str = "", kept: KeptRequest | None = None
    ) -> None:
        """Hand the job to the engine. The tenant is the key's owner, or without keys `user`.

        With `kept`, and where results are on disk, the job is there when this returns. Raises as AsyncEngine.submit,
        and NotReadyError (StoreUnavailableError).
        """
        if self.state != "ready":
            raise self.not_ready()
        params = bounded(params, max_bytes=self.settings.max_result_bytes)
        results = self.results if isinstance(self.results, DurableResults) and kept is not None else None
        sink = job.sink if results is None else results.sink(job, webhook=kept.webhook if kept else None)
        handle = await self.engine.submit(prompt, params, sink, request_id=job.seq_id, tenant=job.owner or user)
        job.accept(handle)
        if results is not None and kept is not None:
            await results.accept(job, handle, kept, user=user, fingerprint=self.engine.fingerprint)

    async def _answer_batched(self, endpoint: str, fields: Mapping[str, Any], owner: str) -> Any:
        return await self._endpoints[endpoint](self, fields, owner=owner)

    async def complete(
        self,
        jobs: Sequence[Job],
        prompts: Sequence["Prompt"],
        params: SamplingParams,
        *,
        user: str = "",
        is_background: bool = False,
    ) -> None:
        """Submit jobs and return when all have ended; if this is cancelled, they are aborted.

        Raises as `submit`, and what made one of them fail.
        """
        params = dataclasses.replace(params, is_background=True) if is_background else params
        try:
            for job, prompt in zip(jobs, prompts, strict=True):
                await self.submit(job, prompt, params, user=user)
            for job in jobs:
                await job.ended.wait()
        except BaseException:  # refused half-way, or a disconnect
            self.abort(*jobs)
            raise
        raise_failure(jobs)

    def abort(self, *jobs: Job) -> None:
        """End jobs that are of no more use."""
        for job in jobs:
            if not job.finished and self._engine is not None:
                self._engine.abort(job.seq_id)


def service_of(connection: HTTPConnection) -> Service:
    """The service behind this request."""
    service = connection.app.state.service
    assert isinstance(service, Service)
    return service
