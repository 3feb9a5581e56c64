"""Service: the state that routes share, and the way of a request into the engine."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, TypeVar

from starlette.requests import HTTPConnection

from ..engine.core.sampling_params import SamplingParams
from ..engine.errors import InvalidRequestError, ModelNotFoundError
from .extension import Extensions, Part
from .http.arrival import arrival_time
from .http.auth import KeyRing
from .http.json_writer import JsonWriter
from .jobs.job import Check, Job, JobObserver, raise_failure
from .jobs.result_size import most_bytes
from .jobs.result_store import ResultStore
from .jobs.saved_request import SavedRequest
from .lifecycle import EngineLifecycle

if TYPE_CHECKING:
    from ..engine.core.outputs import OutputDelta
    from ..engine.language.text.tokenizer import Tokenizer
    from ..engine.serving.async_engine import AsyncEngine
    from ..engine.serving.input_processor import Prompt
    from ..engine.serving.submitted_request import Resumed
    from .metrics import Metrics
    from .server_settings import ServerSettings

P = TypeVar("P", bound=Part)


class Service(JobObserver):
    """One served model, with its settings, engine, kept results, metrics and extensions."""

    def __init__(
        self,
        settings: "ServerSettings",
        engine: "AsyncEngine | None" = None,
        *,
        kinds: Callable[["Service"], Mapping[str, Any]] = lambda service: {},
        endpoints: Mapping[str, Any] | None = None,
        metrics: "Metrics",
    ) -> None:
        """`kinds` makes the SavedKinds of the core's own routes, `endpoints` answers lines of batches."""
        self.settings = settings
        self.start_time = time.time()
        self.keys = KeyRing(settings.keys, settings.admin_keys)
        self.json = JsonWriter(max_shared_bytes=settings.max_result_bytes // 4)
        self.metrics = metrics
        self.extensions = Extensions(settings)
        self.kept_kinds = self.extensions.table("kept_kinds", kinds(self))
        self.endpoints = self.extensions.table("endpoints", endpoints)
        self.extensions.make_parts(self)
        self.results = ResultStore.of(settings, self.extensions.parts)
        self.lifecycle = EngineLifecycle(
            settings, engine, results=self.results, extensions=self.extensions, observer=self.metrics
        )

    @property
    def state(self) -> str:
        """One of loading, ready, draining, stalled (the engine, or its end) or failed (to load)."""
        return self.lifecycle.state

    @property
    def engine(self) -> "AsyncEngine":
        """The engine, also while it drains. Raises NotReadyError before it is loaded."""
        return self.lifecycle.engine

    @property
    def tokenizer(self) -> "Tokenizer":
        """The model's tokenizer. Raises InvalidRequestError if it has none."""
        if (tokenizer := self.engine.tokenizer) is None:
            raise InvalidRequestError("this model has no tokenizer; send token ids to /generate or /v1/completions")
        return tokenizer

    @property
    def default_sampling_params(self) -> Mapping[str, Any]:
        """Values of the sampling fields that a request lacks: the model's; empty until it is loaded."""
        return {} if self.lifecycle.loaded is None else self.lifecycle.loaded.default_sampling_params

    @property
    def num_unfinished(self) -> int:
        """Number of requests, and of work that extensions have accepted, that has not ended."""
        engine = self.lifecycle.loaded
        return (0 if engine is None else engine.num_unfinished) + sum(
            part.num_unfinished for part in self.extensions.parts
        )

    def part(self, kind: type[P]) -> P:
        """Return an extension's state, made when first asked for."""
        part: P = self.extensions.part(kind, self)
        return part

    def engine_stats(self) -> dict[str, object]:
        """Return the engine's snapshot, empty until it is loaded."""
        return {} if self.lifecycle.loaded is None else self.lifecycle.loaded.stats()

    def check_model(self, name: object) -> None:
        """Raise unless `name` is None or one of the served model's."""
        if name is not None and not isinstance(name, str):
            raise InvalidRequestError("model must be a string", param="model")
        if name is not None and not self.settings.serves(name) and self.adapter_named(name) is None:
            served = (*self.settings.model_names, *(adapter.name for adapter in self.adapters))
            near = get_close_matches(name[:100], served, n=1, cutoff=0.5) if len(served) > 1 else []
            raise ModelNotFoundError(
                f"model {name[:100]!r} is not served here; served: {', '.join(served)}"
                + "".join(f"; did you mean {known!r}?" for known in near)
                + f" (--served-model-name {served[0]},* takes any)"
            )

    @property
    def adapters(self) -> Sequence[Any]:
        """Adapters that requests can name as their model."""
        engine = self.lifecycle.loaded
        return () if engine is None else engine.variants

    def adapter_named(self, name: object) -> str | None:
        """Return the name if an adapter has it. Raises NotReadyError if nobody can know yet."""
        is_models = name is None or (self.lifecycle.loaded is None and self.settings.serves(str(name)))
        return None if is_models else next((one.name for one in self.engine.variants if one.name == name), None)

    def new_job(self, params: SamplingParams, *, owner: str, **fields: Any) -> Job:
        """Make a job under a new, unguessable id; not submitted yet. `fields`: further fields of Job."""
        job = self.results.new_job(
            model=params.adapter or self.settings.model_name,
            num_outputs=params.n,
            owner=owner,
            stream_interval=self.settings.stream_interval,
            observers=[self],
            weights_version=self._weights_version,
            **fields,
        )
        job.num_bytes_due = most_bytes(params, max_model_len=self.engine.max_model_len)
        for part in self.extensions.parts:
            part.job_created(job)
        return job

    def _weights_version(self) -> int:
        return self.engine.weights_version

    def job_ended(self, job: Job) -> None:
        """Count the job."""
        self.metrics.on_job_end([len(output.token_ids) for output in job.outputs])

    def answer_checked(self, report: Mapping[str, Any]) -> None:
        """Count the answer."""
        self.metrics.on_answer_checked(report)

    async def check_of(self, params: SamplingParams) -> Check | None:
        """Make the check of plain answers to these parameters; None where there is nothing to check."""
        checks = None if params.structured_outputs is None else self.extensions.first("answer_check")
        return None if checks is None else await checks.of(params)

    def read_check(self, stored: Any) -> Check | None:
        """Rebuild a job's stored answer check."""
        checks = None if stored is None else self.extensions.first("answer_check")
        return None if checks is None else checks.read(stored)

    async def submit(
        self,
        job: Job,
        prompt: "Prompt",
        params: SamplingParams,
        *,
        user: str = "",
        kept: SavedRequest | None = None,
        resumed: "Resumed | None" = None,
        first: "OutputDelta | None" = None,
    ) -> None:
        """Hand the job to the engine. The tenant is the key's owner, or without keys `user`, or the adapter.

        A `resumed` job goes on from tokens that readers have, or get as `first`. With `kept`, and where results are on
        disk, the job is there when this returns. Raises like AsyncEngine.submit, and NotReadyError
        (StoreUnavailableError).
        """
        if self.state != "ready":
            raise self.lifecycle.not_ready()
        params, tenant = self.results.bounded(params), job.owner or user or params.adapter or ""
        receipts = await self.receipts(params)
        sink = job.versions.noting(job.sink if kept is None else self.results.sink(job))
        handle = await self.engine.submit(
            prompt, params, sink, request_id=job.seq_id, tenant=tenant, resumed=resumed, arrival_time=arrival_time()
        )
        if first is not None:
            sink(first)
        job.accept(handle)
        for part in self.extensions.parts:
            part.job_accepted(job, handle, params)
        if receipts is not None:
            job.receipt = receipts.maker(handle)
        if kept is not None:
            fingerprint = self.engine.fingerprint_of(params.adapter)
            await self.results.accept(job, handle, kept, user=user, fingerprint=fingerprint)

    async def receipts(self, params: SamplingParams, engine: "AsyncEngine | None" = None) -> Any:
        """Return the maker of receipts, ready for this request; None if none is wanted. Raises InvalidRequestError."""
        if not params.wants_receipt:
            return None
        if (kind := self.extensions.first("receipts")) is None:
            raise InvalidRequestError("receipt is not served: this installation lacks receipts", param="receipt")
        receipts = self.part(kind)
        await receipts.prepare(engine)
        return receipts

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

        Raises like `submit`, and the failure of the first job that failed.
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
            if not job.finished and self.lifecycle.loaded is not None:
                self.engine.abort(job.seq_id)


def service_of(connection: HTTPConnection) -> Service:
    """Return the service behind this request."""
    service = connection.app.state.service
    assert isinstance(service, Service)
    return service
