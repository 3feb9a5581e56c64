"""EngineCore: adds, schedules, updates and ends requests, before and after each step. StepPipeline drives it.

StepCounter: makes the StepStats of each step, the figures for metrics, logs and pictures.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .batch import Batch, Progress, RowOutput
from .cost_model import CostModel
from .outputs import OutputDelta, RequestMetrics, StepStats
from .ports import Drafted, OutputBuilder, Pacer, SchedulerConfig, Speculator
from .request import Request
from .scheduler import Scheduler


class ScheduledStep(NamedTuple):
    """Step that has been decided. `is_observed`: speculation learns from it, so it drafts and runs synchronously."""

    batch: Batch
    start: float
    is_observed: bool = False


@dataclass(frozen=True, slots=True)
class StepOutput:
    """Results of a step for clients and metrics."""

    deltas: list[OutputDelta]
    stats: StepStats | None  # None if there was nothing to compute


class EngineCore:
    """Unfinished requests and their scheduler, for one thread. Computing a step is the runner's work."""

    def __init__(
        self,
        config: SchedulerConfig,
        scheduler: Scheduler,
        output_builder: OutputBuilder,
        *,
        speculation: Speculator | None = None,
        cost_model: CostModel | None = None,
        pacer: Pacer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config, self.scheduler, self.blocks = config, scheduler, scheduler.blocks
        self.speculation, self.pacer = speculation or Speculator(), pacer or Pacer()
        self.cost_model = cost_model or CostModel()
        self._outputs, self._clock, self._counter = output_builder, clock, StepCounter(scheduler)
        self._requests: dict[str, list[Request]] = {}

    @property
    def num_unfinished(self) -> int:
        """Number of requests that have not ended; the n outputs of a prompt are one request."""
        return len(self._requests)

    def has(self, request_id: str) -> bool:
        """True if this id is in use."""
        return request_id in self._requests

    def add(self, requests: list[Request], *, predicted_ttft: float | None = None) -> None:
        """Queue the outputs of one prompt, whose request_id is not in use. `predicted_ttft`: for their histories."""
        assert requests[0].request_id not in self._requests
        self._requests[requests[0].request_id] = list(requests)
        for request in requests:
            self.scheduler.add(request, predicted_ttft=predicted_ttft)
            self.pacer.note(request)
            self._outputs.add(request)

    def abort(self, request_id: str, index: int | None = None) -> list[OutputDelta]:
        """End a request, or one of its outputs, at once. A step in flight that computes it is dropped for it."""
        requests = [r for r in self._requests.get(request_id, ()) if index in (None, r.index)]
        ended = [request for request in requests if self.scheduler.finish(request, reason="abort", now=self._clock())]
        return [self._delta(Progress(request)) for request in ended]

    def abort_all(self) -> list[OutputDelta]:
        """End every request."""
        return [delta for request_id in list(self._requests) for delta in self.abort(request_id)]

    def expire(self) -> list[OutputDelta]:
        """End requests that have run out of time."""
        return [self._delta(Progress(request)) for request in self.scheduler.expire(self._clock())]

    # A step, before and after it is computed.

    def schedule(self) -> ScheduledStep | None:
        """Decide the next step; None if there is none, or none before `update`."""
        start, scheduler = self._clock(), self.scheduler
        is_observed = not self.speculation.skips_step()
        if is_observed and scheduler.num_steps_in_flight:
            return None
        drafts = self.speculation.choose(scheduler.running) if is_observed else {}
        pace = self.pacer.pace(scheduler.running, scheduler.waiting, start)
        batch = scheduler.schedule(start, pace=pace, drafts=drafts, needs_host=is_observed)
        self.pacer.decided(batch, start)
        return None if batch is None else ScheduledStep(batch, start, is_observed)

    def update(self, step: ScheduledStep, outputs: Sequence[RowOutput]) -> StepOutput:
        """Apply the results of the oldest step in flight, and turn its tokens into text."""
        now = self._clock()
        batch, seconds = step.batch, now - step.start
        drafted = self.speculation.observe(batch, outputs, seconds) if step.is_observed else []
        num_planned = sum([row.num_drafts for row in batch.rows]) if step.is_observed else 0  # else there are none
        num_not_drafted = num_planned - sum(outcome.num_drafted for outcome in drafted)
        context = sum([row.start for row in batch.rows])
        self.cost_model.observe(batch.num_tokens - num_not_drafted, context, seconds)
        if self.cost_model.has_learned:
            self.scheduler.costs.seconds_per_token = self.cost_model.b
        self._outputs.keep_prompt_logprobs(batch, outputs)
        progress = self.scheduler.update(batch, outputs, now)
        deltas = [self._delta(item) for item in progress]
        self.speculation.forget_ended()
        stats = self._counter.stats(batch, progress, deltas, drafted, start=step.start, now=self._clock())
        return StepOutput(deltas, stats)

    def metrics(self, request_id: str) -> dict[int, RequestMetrics]:
        """Return the metrics and histories so far of a request's unfinished outputs, by index."""
        now, observer = self._clock(), self.scheduler.observer
        outputs = self._requests.get(request_id, ())
        return {r.index: replace(r.metrics(), history=observer.so_far(r, now)) for r in outputs}

    def _delta(self, progress: Progress) -> OutputDelta:
        """Return the delta of a request. A stop string ends the request here, without the tokens behind it."""
        request = progress.request
        decoded = self._outputs.decode(progress)
        if decoded.has_failed:
            self.scheduler.finish(request, reason="error", now=self._clock())
        if decoded.stop is not None:
            self.scheduler.finish(request, reason="stop", stop=decoded.stop, now=self._clock())
        if decoded.num_dropped:
            self.scheduler.drop_last(request, decoded.num_dropped)
        delta = self._outputs.delta(progress, decoded)
        if request.is_finished:
            self._forget(request)
        return delta

    def _forget(self, request: Request) -> None:
        self._outputs.forget(request)
        self.pacer.note(request)
        self.speculation.forget(request)
        siblings = self._requests[request.request_id]
        siblings.remove(request)
        if not siblings:
            del self._requests[request.request_id]


class StepCounter:
    """Counts over the steps of one scheduler. Remembers the preemptions that earlier steps have counted."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._num_preemptions = dict(scheduler.num_preemptions_by_mode)

    def stats(
        self,
        batch: Batch,
        progress: Sequence[Progress],
        deltas: Sequence[OutputDelta],
        drafted: Sequence[Drafted],
        *,
        start: float,
        now: float,
    ) -> StepStats:
        """Return the figures of a step that has been applied."""
        scheduler, device = self._scheduler, self._scheduler.blocks.device
        preempted = self._new_preemptions()
        num_decode_tokens = batch.num_decode_tokens
        interactive = [item for item in progress if not item.request.is_background]
        return StepStats(
            step=batch.step,
            time=now,
            duration=now - start,
            num_prefill_tokens=batch.num_tokens - num_decode_tokens,
            num_decode_tokens=num_decode_tokens,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_used_blocks=device.num_used_blocks,
            num_blocks=device.num_blocks,
            num_preempted=sum(preempted.values()),
            num_swapped_out=preempted["swap"],
            num_output_tokens=sum([len(delta.token_ids) for delta in deltas]),
            num_drafts=len(drafted),
            num_draft_tokens=sum(outcome.num_drafted for outcome in drafted),
            num_accepted_tokens_per_pos=accepted_per_position(drafted),
            ttfts=tuple(
                [now - item.request.arrival_time for item in interactive if item.gap is None and item.output.token_ids]
            ),
            itls=tuple([item.gap for item in interactive if item.gap is not None]),
        )

    def _new_preemptions(self) -> dict[str, int]:
        counts, before = self._scheduler.num_preemptions_by_mode, self._num_preemptions
        self._num_preemptions = dict(counts)
        return {mode: count - before[mode] for mode, count in counts.items()}


def accepted_per_position(outcomes: Sequence[Drafted]) -> tuple[int, ...]:
    """Count the drafts whose first token was accepted, whose second, and so on."""
    longest = max((outcome.num_accepted for outcome in outcomes), default=0)
    return tuple(sum(outcome.num_accepted > position for outcome in outcomes) for position in range(longest))
