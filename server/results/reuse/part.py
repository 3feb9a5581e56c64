"""AnswerReuse: finds the earlier answer to an equal request, and keeps answers that later requests may get."""

import asyncio
import hashlib
import time
from collections.abc import Callable
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from ....engine.core.outputs import OutputDelta, RequestMetrics
from ....engine.core.sampling_params import SamplingParams
from ....engine.serving.submitted_request import SubmittedRequest
from ...api.streaming import MAX_BATCH
from ...extension import Part
from ...jobs.job import Job, JobObserver
from ...jobs.result_backend import Reuse
from .answers import AnsweredRequest, CachedAnswer, CachedAnswers

if TYPE_CHECKING:
    from ....engine.serving.input_processor import Prompt

# Parameters that change nothing of a complete answer.
_UNREAD = {"names", "is_background", "wants_receipt", "priority", "timeout_ms", "max_queue_ms"}
_UNREAD |= {"ttft_ms", "itl_ms", "best_effort"}
_COMPLETE = {"stop", "length"}
MAX_ANSWERS, MAX_BYTES = 1000, 64 * 2**20  # answers that are kept, and their memory


class AnswerReuse(Part):
    """Part of `--reuse-answers`."""

    def __init__(self, service: Any) -> None:
        super().__init__(service)
        self.answers = CachedAnswers(max_answers=MAX_ANSWERS, max_bytes=MAX_BYTES)

    def reuse(self, job: Job, prompt: "Prompt", params: SamplingParams, *, tenant: str) -> Reuse | None:
        """Like Part. Without a seed every sampled answer is another one, and prompt logprobs are not kept."""
        is_greedy = params.temperature == 0 or params.top_k == 1
        if params.prompt_logprobs is not None or (params.seed is None and not is_greedy):
            return None
        engine = self.service.engine
        fingerprint = engine.fingerprint_of(params.adapter)
        key = _key(prompt, params, fingerprint)
        return _Reuse(
            self.answers, job, tenant=tenant, key=key, fingerprint=fingerprint, version=engine.weights_version
        )


def _key(prompt: "Prompt", params: SamplingParams, fingerprint: str) -> bytes:
    """Return the hash of all that decides an answer, the defaults of absent fields included."""
    values = [(item.name, getattr(params, item.name)) for item in fields(params) if item.name not in _UNREAD]
    return hashlib.sha256(repr((fingerprint, prompt, values)).encode()).digest()


class _Reuse(JobObserver):
    """Reuse of one job. Without an earlier answer, the observer that keeps the job's."""

    def __init__(
        self, answers: CachedAnswers, job: Job, *, tenant: str, key: bytes, fingerprint: str, version: int
    ) -> None:
        """`fingerprint`, `version`: of the model and its weights, which the key is of."""
        self._answers = answers
        self._job = job
        self._tenant = tenant
        self._key = key
        self._fingerprint, self._version = fingerprint, version
        self._found = answers.find(tenant, key)
        self._request: AnsweredRequest | None = None  # the engine's, to be kept with its answer

    @property
    def earlier(self) -> SubmittedRequest | None:
        """Like Reuse."""
        return None if self._found is None else self._found.request

    async def accepted(self, request: SubmittedRequest, sink: Callable[[OutputDelta], None]) -> None:
        """Like Reuse."""
        if self._found is not None:
            await self._deliver(self._found, sink)
            return
        self._request = AnsweredRequest(request)
        if self._job.finished:  # while the request was written to disk
            self.job_ended(self._job)
        else:
            self._job.observe(self)

    async def _deliver(self, answer: CachedAnswer, sink: Callable[[OutputDelta], None]) -> None:
        now = time.monotonic()
        self._job.num_reused_tokens = sum(len(delta.token_ids) for delta in answer.deltas)
        for number, delta in enumerate(answer.deltas, 1):
            metrics = None if delta.metrics is None else _metrics_at(now, delta.metrics)
            sink(replace(delta, request_id=self._job.seq_id, metrics=metrics))
            if number % MAX_BATCH == 0:
                await asyncio.sleep(0)

    def job_ended(self, job: Job) -> None:
        """Keep the answer, if it is complete and all of it is the key's model's."""
        assert self._request is not None
        if job.was_changed:
            return
        adapter = self._request.params.adapter
        is_of_key = set(job.weights.values()) <= {self._version} and (
            adapter is None or self._fingerprint.endswith(f"+{adapter.digest}")
        )
        if is_of_key and {output.finish_reason for output in job.outputs} <= _COMPLETE:
            answer = CachedAnswer(self._request, _deltas(job), job.num_bytes)
            self._answers.add(self._tenant, self._key, answer)


def _deltas(job: Job) -> list[OutputDelta]:
    """Return the job's events, and an empty one for each output whose end has no event."""
    ended = {event.index for event in job.events if event.finish_reason is not None}
    ends = [
        OutputDelta(job.seq_id, output.index, "", (), None, output.finish_reason, output.stop_reason, output.metrics)
        for output in job.outputs
        if output.index not in ended
    ]
    return [replace(event, metrics=_without_history(event.metrics)) for event in (*job.events, *ends)]


def _without_history(metrics: RequestMetrics | None) -> RequestMetrics | None:
    return None if metrics is None else replace(metrics, history=None)


def _metrics_at(now: float, metrics: RequestMetrics) -> RequestMetrics:
    return RequestMetrics(now, now, now, now, metrics.num_prompt_tokens, metrics.num_output_tokens, 0, 0)
