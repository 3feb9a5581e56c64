"""Resumption: the jobs that an earlier process left unfinished go on in the order in which they came."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ...engine.errors import ModelNotFoundError, SplitfuseError, UnavailableError
from ..jobs.result_size import bounded
from ..settings import Settings
from .durable_results import DurableResults
from .kept_request import KeptKind, KeptRequest
from .unfinished_job import MAX_CRASHES, UnfinishedJob

if TYPE_CHECKING:
    from ...engine.serving.async_engine import AsyncEngine
    from ...engine.serving.input_processor import Prompt
    from ...engine.serving.submitted_request import SubmittedRequest


class Resumption:
    """Submits unfinished jobs to an engine that has nothing else to do yet."""

    def __init__(
        self, results: DurableResults, engine: "AsyncEngine", kinds: Mapping[str, KeptKind], settings: Settings
    ) -> None:
        self._results = results
        self._engine = engine
        self._kinds = kinds
        self._settings = settings

    async def run(self) -> None:
        """Return when all go on. A job that was running when two processes died is tried alone first, so that a third
        death shows which one it was. Raises StoreUnavailableError.
        """
        jobs, self._results.to_resume = self._results.to_resume, []
        await self.resume(jobs)

    async def resume(self, jobs: Sequence[UnfinishedJob]) -> None:
        """The same for these jobs."""
        for each in jobs:
            if each.is_damaged:
                self._results.fail(each, reason="interrupted: what was kept of it was changed on disk")
            elif each.row.num_crashes >= MAX_CRASHES:
                reason = f"interrupted: {each.row.num_crashes} processes died while it was running"
                self._results.fail(each, reason=reason)
        jobs = [each for each in jobs if each.row.num_crashes < MAX_CRASHES and not each.is_damaged]
        for each in (each for each in jobs if each.is_suspect):
            await self._results.begin([each])
            await self._submit(each)
            await each.kept.job.ended.wait()
            if self._engine.has_died:
                return  # the others did not run when it did
        others = [each for each in jobs if not each.is_suspect]
        if others:
            await self._results.begin(others)
        for each in others:
            await self._submit(each)

    async def _submit(self, each: UnfinishedJob) -> None:
        is_renewed = each.request["fingerprint"] != self._engine.fingerprint
        if is_renewed and each.has_told:
            reason = "interrupted: the model, its tokenizer, template or dtype is not the one that it began with"
            self._results.fail(each, reason=reason)
            return
        try:
            if is_renewed:
                await self._begin_afresh(each)
            else:
                each.kept.job.accept(await self._submitted(each, each.request["prompt_token_ids"]))
        except UnavailableError:  # this process ends: another one goes on with it
            each.kept.job.suspend()
        except Exception as exc:  # it concerns this job alone, perhaps because another version wrote it
            reason = str(exc) if isinstance(exc, SplitfuseError) else type(exc).__name__
            self._results.fail(each, reason=f"interrupted: it cannot go on here ({reason})")

    async def _begin_afresh(self, each: UnfinishedJob) -> None:
        """Nothing of it was told: it is this model's, with this model's tokens and template."""
        job, request = each.kept.job, each.request
        kind, served = self._kinds[request["kind"]], self._settings.model_name
        asked = request["body"].get("model")
        if asked is not None and not self._settings.serves(asked):
            raise ModelNotFoundError(f"it asks for another model than {served}")
        kept = KeptRequest(
            kind=request["kind"], body=request["body"], attachment=request["attachment"], webhook=request.get("webhook")
        )
        prompt, kept = await kind.renewed(self._engine, self._settings, kept)
        job.renew(served, kind.attachment(kept.attachment))
        handle = await self._submitted(each, prompt)
        self._results.renew(each, handle, kept, fingerprint=self._engine.fingerprint)
        job.accept(handle)

    async def _submitted(self, each: UnfinishedJob, prompt: "Prompt") -> "SubmittedRequest":
        job, request = each.kept.job, each.request
        params = self._kinds[request["kind"]].params(request["body"], job.attachment)
        return await self._engine.submit(
            prompt,
            bounded(params, max_bytes=self._results.limits.max_bytes),
            self._results.resumed_sink(each),
            request_id=job.seq_id,
            tenant=job.owner or request["user"],
            resumed=each.resumed,
        )
