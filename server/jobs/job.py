"""A job: one submitted request as its readers see it. The engine's sink writes it, polls and streams read it.

The log of events only grows, so a reader needs no more than a position in it, and a slow one delays no other. It is
bounded by the request's own max_tokens. Knows neither HTTP nor the store: both observe it.
"""

import asyncio
import contextlib
import dataclasses
import logging
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from ...engine.core.outputs import OutputDelta, PromptLogprobs, RequestMetrics, TokenLogprobs
from ...engine.errors import RequestFailedError, SplitfuseError
from ...engine.serving.request_output import CompletionOutput
from ..http.errors import NotReadyError
from .idempotency import IdempotencyKey
from .signal import Latch, Signal

if TYPE_CHECKING:
    from ...engine.serving.submitted_request import SubmittedRequest


Sink = Callable[[OutputDelta], None]
_logger = logging.getLogger("splitfuse.results")
# Bytes of an event beside its text, measured with tracemalloc: delta, ids tuple, list slot.
EVENT_BYTES = 250
# Bytes of a kept job beside its events and history: tracemalloc finds 5.5 KB for each of 300 streams that were left,
# with 1.7 in those. 4.6 KB of it go with the job.
JOB_BYTES = 3700
LOGPROB_BYTES = 120


class WeightVersions:
    """Versions that sampled a job's last and first token. `current` returns the version that samples now."""

    def __init__(self, current: Callable[[], int] | None = None) -> None:
        self._current = current  # None if nobody knows it
        self._last: int | None = None
        self._first: int | None = None

    def noting(self, sink: Sink) -> Sink:
        """Return the engine's sink, which notes the version of each delta before a store delays it."""
        current = self._current
        if current is None:
            return sink

        def noted(delta: OutputDelta) -> None:
            if delta.token_ids:
                self.note(weights_version=current())
            sink(delta)

        return noted

    def note(self, *, weights_version: int, first_weights_version: int | None = None) -> None:
        """Note the version behind the last tokens, and once that behind the first."""
        self._last = weights_version
        if self._first is None:
            self._first = weights_version if first_weights_version is None else first_weights_version

    def to_dict(self) -> dict[str, int]:
        """Return the fields of an answer: none if no version is known, one if all tokens have the same."""
        if self._last is None or self._first is None:
            return {}
        both = {"weights_version": self._last, "first_weights_version": self._first}
        return both if self._first != self._last else {"weights_version": self._last}


def new_id(prefix: str, tag: str) -> str:
    """Return `prefix`, the server's `--id-tag`, and 24 random bytes in base64url."""
    return prefix + tag + secrets.token_urlsafe(24)


class Attachment(Protocol):
    """Data that an API keeps with a job; the job counts its memory and has its outputs checked."""

    @property
    def num_bytes(self) -> int: ...

    @property
    def check(self) -> "Check | None": ...


class Check(Protocol):
    """Check of outputs that are complete."""

    @property
    def header(self) -> str:
        """Value of X-Unenforced: the parts of the schema that no grammar enforces."""

    def report(self, output: CompletionOutput) -> dict[str, Any]:
        """Return the fields that stand beside the output."""

    def to_dict(self) -> dict[str, Any]:
        """Return the check as JSON values, to be kept with a job."""


class ReceiptMaker(Protocol):
    """Maker of the receipt of one job."""

    def of(self, job: "Job", outputs: Sequence[CompletionOutput]) -> dict[str, Any] | None:
        """Return the receipt of the job's complete outputs; None if no receipt can state it. Equal at every call."""


class JobObserver:
    """Observer of jobs. Methods are called on the event loop and must be quick."""

    def job_grew(self, job: "Job", num_bytes: int) -> None:
        """Hear that a delta has made the job larger."""

    def job_ended(self, job: "Job") -> None:
        """Hear that every output has ended."""

    def answer_checked(self, report: Mapping[str, Any]) -> None:
        """Hear the report of an output that its Check has read."""


class Job:
    """One request, its outputs so far and the log of events: `events[i]` is the event with id i."""

    # Defaults of fields that few jobs set. Beyond 29 fields each instance has a dictionary of its own, of 1.3 KB more.
    prompt_logprobs: PromptLogprobs | None = None
    receipt: ReceiptMaker | None = None
    # Another process goes on with the job; the parameters have changed since the job began.
    is_suspended = was_changed = False

    def __init__(
        self,
        seq_id: str,
        *,
        model: str,
        num_outputs: int = 1,
        owner: str = "",
        stream_interval: int = 1,
        changed: Signal | None = None,
        keeps_prompt: bool = False,
        created: float | None = None,
        attempt: int = 1,
        idempotency_key: IdempotencyKey | None = None,
        ttl_s: float | None = None,
        check: Check | None = None,
        weights_version: Callable[[], int] | None = None,
        observers: Iterable[JobObserver] = (),
    ) -> None:
        self.seq_id = seq_id
        self.versions = WeightVersions(weights_version)
        self.created = time.time() if created is None else created  # wall clock
        self.attempt = attempt  # number of processes that have run it
        self.owner = owner
        self.model = model
        self.outputs = [CompletionOutput(index=index) for index in range(num_outputs)]
        self.events: list[OutputDelta] = []
        self.num_bytes = JOB_BYTES
        self.num_bytes_due = 0  # that its answer may take, about
        self.num_prompt_tokens = 0
        # The whole text, and its ids: kept only if `keeps_prompt`, for they can be long.
        self.prompt: str | None = None
        self.prompt_token_ids: list[int] = []
        self.idempotency_key = idempotency_key
        self.ttl_s = ttl_s  # seconds to keep it after its end, if fewer than the store's
        self.attachment: Attachment | None = None
        self.check = check
        self.changed = changed or Signal()
        self.ended = Latch()
        self.was_read = Latch()  # a reader received the final event
        self.stream_interval = stream_interval
        self._keeps_prompt = keeps_prompt
        self._observers = list(observers)
        self._reports: dict[int, dict[str, Any]] = {}
        self._handle: SubmittedRequest | None = None
        self._pending: dict[int, OutputDelta] = {}

    def observe(self, observer: JobObserver) -> None:
        """Have one more observer from now on."""
        self._observers.append(observer)

    def unobserve(self, observer: JobObserver) -> None:
        """Have this observer no longer, if it is one."""
        self._observers = [other for other in self._observers if other is not observer]

    def accept(self, handle: "SubmittedRequest") -> None:
        """Remember the request as the engine took it. The prompt itself is kept no longer than the job runs."""
        self.num_prompt_tokens = len(handle.prompt_token_ids)
        if self._keeps_prompt:
            self.prompt_token_ids = handle.prompt_token_ids
            self.prompt = handle.prompt if handle.params.truncate_prompt_tokens is None else None
        if not self.finished:
            self._handle = handle

    def attach(self, attachment: Attachment) -> None:
        """Keep an API's data of the request for as long as its result is kept."""
        self.attachment, self.check = attachment, attachment.check
        self.num_bytes += attachment.num_bytes

    def renew(self, model: str, attachment: Attachment | None) -> None:
        """Change the model and the attachment: another model than the first runs it."""
        self.model, self.attachment = model, attachment
        self.check = None if attachment is None else attachment.check

    def sink(self, delta: OutputDelta) -> None:
        """Take one delta from the engine."""
        self.outputs[delta.index].add(delta)
        if delta.prompt_logprobs is not None:
            self.prompt_logprobs = delta.prompt_logprobs
        is_last = delta.finish_reason is not None
        if delta.token_ids or delta.text or delta.index in self._pending:
            self._log(delta, flush=is_last)
        if is_last and self.finished:
            self._handle = None
            self.ended.set()
        self.changed.fire()
        self.grow(_size_of(delta))
        if is_last and self.finished:
            self._notify("job_ended")

    def grow(self, num_bytes: int) -> None:
        """Count memory that is kept for as long as the job."""
        self.num_bytes += num_bytes
        self._notify("job_grew", num_bytes)

    def suspend(self) -> None:
        """Release all readers: no more events come in this process."""
        self.is_suspended = True
        self.ended.set()
        self.changed.fire()

    @property
    def created_at(self) -> int:
        """Time of arrival in whole seconds, as OpenAI's objects have it."""
        return int(self.created)

    @property
    def finished(self) -> bool:
        """True if every output has ended."""
        return all(output.finish_reason is not None for output in self.outputs)

    @property
    def status(self) -> str:
        """One of queued, running, completed, failed, cancelled."""
        if not self.finished:
            is_started = self._handle is not None and self._handle.started
            return "running" if self.events or is_started else "queued"
        reasons = {output.finish_reason for output in self.outputs}
        return "failed" if "error" in reasons else "cancelled" if "abort" in reasons else "completed"

    @property
    def num_completion_tokens(self) -> int:
        """Number of tokens of all outputs so far."""
        return sum(len(output.token_ids) for output in self.outputs)

    @property
    def num_cached_tokens(self) -> int:
        """Number of prompt tokens that came from the prefix cache, where known."""
        return max((m.num_cached_tokens for m in self.metrics), default=0)

    @property
    def weights(self) -> dict[str, int]:
        """Versions of the weights that sampled the last and the first token; empty if they are not known."""
        return self.versions.to_dict()

    @property
    def metrics(self) -> list[RequestMetrics]:
        """Metrics of the outputs that have ended."""
        return [output.metrics for output in self.outputs if output.metrics is not None]

    def failure(self) -> SplitfuseError | None:
        """Return the reason why the job ended without being complete; None if it is complete or runs."""
        if self.status == "failed":
            error = next((output.error for output in self.outputs if output.error is not None), None)
            return error or RequestFailedError("the request failed", error_id="unknown")
        if self.status == "cancelled":
            return NotReadyError("the request was cancelled before its answer was complete", code="cancelled")
        return None

    def report(self, index: int) -> dict[str, Any]:
        """Return the check's report of an output; empty while the output runs, or without a check."""
        output = self.outputs[index]
        if self.check is None or output.finish_reason is None:
            return {}
        if index not in self._reports:
            self._reports[index] = self.check.report(output)
            for observer in self._observers:
                observer.answer_checked(self._reports[index])
        return self._reports[index]

    def additions(self) -> dict[str, Any]:
        """Return the fields that extensions add to a complete answer."""
        return {"receipt": self.receipt.of(self, self.outputs)} if self.receipt and self.status == "completed" else {}

    async def wait(self, seconds: float) -> None:
        """Return when the job has ended, or after this many seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.ended.wait()

    def _notify(self, method: str, *values: int) -> None:
        for observer in list(self._observers):
            try:
                getattr(observer, method)(self, *values)
            except Exception:  # a bug of ours; the other observers hear of it
                _logger.exception("an observer of a job failed")

    def _log(self, delta: OutputDelta, *, flush: bool) -> None:
        pending = self._pending.pop(delta.index, None)
        event = delta if pending is None else _joined(pending, delta)
        # People wait for the first token, so it goes out at once.
        is_first = len(self.outputs[delta.index].token_ids) == len(delta.token_ids)
        if flush or is_first or len(event.token_ids) >= self.stream_interval:
            self.events.append(event)
        else:
            self._pending[delta.index] = event


def _size_of(delta: OutputDelta) -> int:
    num_bytes = EVENT_BYTES + 2 * len(delta.text) + 16 * len(delta.token_ids)
    if delta.logprobs is not None:
        num_bytes += LOGPROB_BYTES * sum(1 + len(item.top) for item in delta.logprobs)
    if delta.prompt_logprobs is not None:
        num_bytes += delta.prompt_logprobs.num_bytes
    if delta.metrics is not None and delta.metrics.history is not None:
        num_bytes += EVENT_BYTES * len(delta.metrics.history.events)
    return num_bytes


def _joined(first: OutputDelta, second: OutputDelta) -> OutputDelta:
    logprobs: tuple[TokenLogprobs, ...] | None = None
    if first.logprobs is not None or second.logprobs is not None:
        logprobs = (first.logprobs or ()) + (second.logprobs or ())
    return dataclasses.replace(
        second, text=first.text + second.text, token_ids=first.token_ids + second.token_ids, logprobs=logprobs
    )


def raise_failure(jobs: Iterable[Job]) -> None:
    """Raise the reason of the first job that ended without being complete, if one did."""
    for job in jobs:
        if (failure := job.failure()) is not None:
            raise failure


def usage(*jobs: Job) -> dict[str, int]:
    """Count tokens read and written, over jobs that make up one answer."""
    num_prompt = sum(job.num_prompt_tokens for job in jobs)
    num_completion = sum(job.num_completion_tokens for job in jobs)
    return {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_completion,
        "total_tokens": num_prompt + num_completion,
    }


def additions(*jobs: Job) -> dict[str, Any]:
    """Return the fields that extensions add to an answer; lists of them if several jobs make it up."""
    first, *rest = (job.additions() for job in jobs)
    return {name: [value, *(other[name] for other in rest)] for name, value in first.items()} if rest else first
