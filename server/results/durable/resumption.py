"""Resumption: jobs that an earlier process left unfinished go on in the order of their arrival."""

import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ....engine.core.sampling_params import SamplingParams
from ....engine.errors import ModelNotFoundError, SplitfuseError, UnavailableError
from ...jobs.result_size import bounded
from ...jobs.saved_request import SavedKind, SavedRequest, adapter_of, params_of
from ...server_settings import ServerSettings
from .durable_backend import DurableBackend
from .unfinished_job import MAX_CRASHES, UnfinishedJob

if TYPE_CHECKING:
    from ....engine.serving.async_engine import AsyncEngine
    from ....engine.serving.input_processor import Prompt
    from ....engine.serving.submitted_request import SubmittedRequest

Receipts = Callable[[SamplingParams, "AsyncEngine"], Awaitable[Any]]


class Resumption:
    """Submitter of unfinished jobs to an engine that has no other work yet."""

    def __init__(
        self,
        backend: DurableBackend,
        engine: "AsyncEngine",
        kinds: Mapping[str, SavedKind],
        settings: ServerSettings,
        *,
        receipts: Receipts | None = None,
    ) -> None:
        """`receipts`: returns the part that makes receipts, for parameters that want one."""
        self._backend = backend
        self._engine = engine
        self._kinds = kinds
        self._settings = settings
        self._receipts = receipts

    async def run(self) -> None:
        """Return when all jobs are submitted. A job that was running when two processes died runs alone first, so that
        a third death names the job. Raises StoreUnavailableError.
        """
        jobs, self._backend.to_resume = self._backend.to_resume, []
        await self.resume(jobs)

    async def resume(self, jobs: Sequence[UnfinishedJob]) -> None:
        """Submit these jobs, like `run`."""
        for unfinished in jobs:
            if unfinished.is_damaged:
                self._backend.fail(unfinished, reason="interrupted: its stored events were changed on disk")
            elif unfinished.row.num_crashes >= MAX_CRASHES:
                reason = f"interrupted: {unfinished.row.num_crashes} processes died while it was running"
                self._backend.fail(unfinished, reason=reason)
        jobs = [
            unfinished for unfinished in jobs if unfinished.row.num_crashes < MAX_CRASHES and not unfinished.is_damaged
        ]
        for unfinished in (unfinished for unfinished in jobs if unfinished.is_suspect):
            await self._backend.begin([unfinished])
            await self._submit(unfinished)
            await unfinished.kept.job.ended.wait()
            if self._engine.has_died:
                return  # the others did not run when it did
        others = [unfinished for unfinished in jobs if not unfinished.is_suspect]
        if others:
            await self._backend.begin(others)
        for unfinished in others:
            await self._submit(unfinished)

    async def _submit(self, unfinished: UnfinishedJob) -> None:
        adapter = adapter_of(unfinished.request)
        if adapter is not None and adapter not in [variant.name for variant in self._engine.variants]:
            reason = f"interrupted: its adapter {adapter[:100]!r} is not loaded; name it in --lora-modules"
            self._backend.fail(unfinished, reason=reason)
            return
        is_renewed = unfinished.request.get("fingerprint") != self._engine.fingerprint_of(adapter)
        if is_renewed and unfinished.has_told:
            reason = "interrupted: the model, its adapter, tokenizer, template, dtype or splitfuse has changed since"
            self._backend.fail(unfinished, reason=reason)
            return
        try:
            if is_renewed:
                await self._begin_afresh(unfinished)
            else:
                unfinished.kept.job.accept(await self._submitted(unfinished, unfinished.request["prompt_token_ids"]))
        except UnavailableError:  # this process ends: another one goes on with it
            unfinished.kept.job.suspend()
        except Exception as exc:  # it concerns this job alone, perhaps because another version wrote it
            reason = str(exc) if isinstance(exc, SplitfuseError) else type(exc).__name__
            self._backend.fail(unfinished, reason=f"interrupted: it cannot go on here ({reason})")

    async def _begin_afresh(self, unfinished: UnfinishedJob) -> None:
        """Start a job that has delivered nothing, with this model's tokens and template."""
        job, request = unfinished.kept.job, unfinished.request
        kind, served = self._kinds[request["kind"]], self._settings.model_name
        asked = request["body"].get("model")
        adapter = adapter_of(unfinished.request)
        if asked is not None and not self._settings.serves(asked) and asked != adapter:
            raise ModelNotFoundError(f"it asks for another model than {served}")
        kept = SavedRequest(
            kind=request["kind"],
            body=request["body"],
            attachment=request["attachment"],
            defaults=request.get("defaults", {}),
        )
        prompt, kept = await kind.renewed(self._engine, self._settings, kept)
        job.renew(adapter or served, kind.attachment(kept.attachment))
        handle = await self._submitted(unfinished, prompt)
        self._backend.renew(unfinished, handle, kept, fingerprint=self._engine.fingerprint_of(adapter))
        job.accept(handle)

    async def _submitted(self, unfinished: UnfinishedJob, prompt: "Prompt") -> "SubmittedRequest":
        job, request = unfinished.kept.job, unfinished.request
        params = params_of(self._kinds, request, job.attachment)
        receipts = None
        if self._receipts is not None:
            with contextlib.suppress(UnavailableError):  # its weights cannot be named: the answer has no receipt
                receipts = await self._receipts(params, self._engine)
        handle = await self._engine.submit(
            prompt,
            bounded(params, max_bytes=self._backend.index.limits.max_bytes),
            self._backend.resumed_sink(unfinished),
            request_id=job.seq_id,
            tenant=job.owner or request["user"],
            resumed=unfinished.resumed,
        )
        if receipts is not None:
            job.receipt = receipts.maker(handle, self._engine)
        return handle
