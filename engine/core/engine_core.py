"""EngineCore: the unfinished requests, and what happens to them before and after each step. StepPipeline drives it."""

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from .batch import Batch, Progress, RowOutput
from .block_manager import BlockManager, CacheSpec
from .cost_model import CostModel, background_budget, seconds_until_ended, step_budget
from .outputs import OutputDelta, RequestMetrics, StepStats
from .policies import num_interactive
from .ports import OutputBuilder, RequestObserver, Speculator, accepted_per_position
from .request import Request
from .scheduler import Scheduler, SchedulerListener
from .scheduler_config import SchedulerConfig

# After so many steps the cost model's price of a token is worth acting on.
_NUM_STEPS_TO_LEARN = 20
# Among more than these a request's first token is not predicted as it comes: 0.2 us for each of them.
_MAX_REQUESTS_TO_PREDICT = 64


class ScheduledStep(NamedTuple):
    """A step that has been decided. `is_observed`: speculation learns from it, so it drafts and runs synchronously."""

    batch: Batch
    start: float
    is_observed: bool = False


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step brought."""

    deltas: list[OutputDelta]
    stats: StepStats | None  # None if there was nothing to compute


class EngineCore:
    """Adds, schedules, updates and ends requests; all in one thread. Computing a step is the runner's work."""

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheSpec,
        output_builder: OutputBuilder,
        *,
        max_steps_in_flight: int = 1,
        listener: SchedulerListener | None = None,
        speculation: Speculator | None = None,
        observer: RequestObserver | None = None,
        cost_model: CostModel | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`max_steps_in_flight`: 2 to schedule a step before the one before it has been updated."""
        self.blocks = BlockManager(
            cache, prefix_caching=config.enable_prefix_caching, tenant_weights=config.tenant_weights
        )
        self.scheduler = Scheduler(
            config, self.blocks, max_steps_in_flight=max_steps_in_flight, listener=listener, observer=observer
        )
        self.scheduler.costs.seconds_per_block = cache.seconds_per_block
        self.speculation = speculation
        self.cost_model = cost_model or CostModel()
        self._outputs = output_builder
        self._clock = clock
        self._target_itl_s = None if config.target_itl_ms is None else config.target_itl_ms / 1000
        self._max_num_batched_tokens = config.step_limits.num_batched_tokens
        self._max_num_seqs = config.step_limits.num_seqs
        self._requests: dict[str, list[Request]] = {}
        self._num_preemptions_seen = dict(self.scheduler.num_preemptions_by_mode)

    @property
    def num_unfinished(self) -> int:
        """Requests (each with its n outputs) that have not ended."""
        return len(self._requests)

    def has(self, request_id: str) -> bool:
        """Whether this id is in use."""
        return request_id in self._requests

    def add(self, requests: list[Request]) -> None:
        """Queue the outputs of one prompt, all of one request_id that is not in use."""
        assert requests[0].request_id not in self._requests
        self._requests[requests[0].request_id] = list(requests)
        predicted = self._predicted_ttft(requests[0])
        for request in requests:
            self.scheduler.add(request, predicted_ttft=predicted)
            self._outputs.add(request)

    def abort(self, request_id: str) -> list[OutputDelta]:
        """End a request at once; a step in flight that computes it is dropped for it."""
        requests = list(self._requests.get(request_id, ()))
        ended = [request for request in requests if self.scheduler.finish(request, reason="abort", now=self._clock())]
        return [self._delta(Progress(request)) for request in ended]

    def abort_all(self) -> list[OutputDelta]:
        """End every request."""
        return [delta for request_id in list(self._requests) for delta in self.abort(request_id)]

    def expire(self) -> list[OutputDelta]:
        """End what has run out of time."""
        return [self._delta(Progress(request)) for request in self.scheduler.expire(self._clock())]

    # A step, before and after it is computed.

    def schedule(self) -> ScheduledStep | None:
        """The next step, or None if there is none, or none before `update`."""
        start = self._clock()
        drafts: dict[Request, int] = {}
        is_observed = self.speculation is not None and not self.speculation.skips_step()
        if self.speculation is not None and is_observed:
            if self.scheduler.num_steps_in_flight:
                return None
            drafts = self.speculation.choose(self.scheduler.running)
        scheduler = self.scheduler
        batch = scheduler.schedule(
            start,
            budget=self._budget(),
            drafts=drafts,
            needs_host=is_observed,
            background_budget=background_budget(self.cost_model, scheduler.running, scheduler.waiting),
        )
        return None if batch is None else ScheduledStep(batch, start, is_observed)

    def _budget(self) -> int | None:
        """Tokens of the next step such that its decodes get their tokens in time; None = the configured budget."""
        if self._target_itl_s is None:
            return None
        return step_budget(
            self.cost_model,
            self.scheduler.running,
            target_s=self._target_itl_s,
            maximum=self._max_num_batched_tokens,
            block_size=self.blocks.device.block_size,
        )

    def update(self, step: ScheduledStep, outputs: Sequence[RowOutput]) -> StepOutput:
        """Apply what the oldest step in flight computed, and turn its tokens into text."""
        now = self._clock()
        batch, seconds = step.batch, now - step.start
        drafted = self.speculation.observe(batch, outputs, seconds) if self.speculation and step.is_observed else []
        num_planned = sum([row.num_drafts for row in batch.rows]) if step.is_observed else 0  # else none are
        num_not_drafted = num_planned - sum(each.num_drafted for each in drafted)
        self._learn(batch, batch.num_tokens - num_not_drafted, seconds)
        self._outputs.keep_prompt_logprobs(batch, outputs)
        by_mode = self.scheduler.num_preemptions_by_mode
        preempted = {mode: count - self._num_preemptions_seen[mode] for mode, count in by_mode.items()}
        self._num_preemptions_seen = dict(by_mode)
        progress = self.scheduler.update(batch, outputs, now)
        deltas = [self._delta(item) for item in progress]
        now = self._clock()
        if self.speculation is not None:
            self.speculation.forget_ended()
        num_decode_tokens = batch.num_decode_tokens
        interactive = [item for item in progress if not item.request.is_background]
        stats = StepStats(
            step=batch.step,
            time=now,
            duration=now - step.start,
            num_prefill_tokens=batch.num_tokens - num_decode_tokens,
            num_decode_tokens=num_decode_tokens,
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            num_used_blocks=self.blocks.device.num_used_blocks,
            num_blocks=self.blocks.device.num_blocks,
            num_preempted=sum(preempted.values()),
            num_swapped_out=preempted["swap"],
            num_output_tokens=sum([len(delta.token_ids) for delta in deltas]),
            num_drafts=len(drafted),
            num_draft_tokens=sum(each.num_drafted for each in drafted),
            num_accepted_tokens_per_pos=accepted_per_position(drafted),
            ttfts=tuple(
                [now - item.request.arrival_time for item in interactive if item.gap is None and item.output.token_ids]
            ),
            itls=tuple([item.gap for item in interactive if item.gap is not None]),
        )
        return StepOutput(deltas, stats)

    def _learn(self, batch: Batch, num_tokens: int, seconds: float) -> None:
        self.cost_model.observe(num_tokens, sum([row.start for row in batch.rows]), seconds)
        if self.cost_model.num_steps >= _NUM_STEPS_TO_LEARN:
            self.scheduler.costs.seconds_per_token = self.cost_model.b

    def _predicted_ttft(self, request: Request) -> float | None:
        """Seconds until its first token, before it is queued; None where that is not known or costs too much."""
        scheduler = self.scheduler
        if self.cost_model.num_steps < _NUM_STEPS_TO_LEARN or request.num_output_tokens:
            return None
        if len(scheduler.running) + len(scheduler.waiting) > _MAX_REQUESTS_TO_PREDICT:
            return None
        return self.predicted_wait_s() + self.cost_model.predict(request.num_tokens, 0)

    def metrics(self, request_id: str) -> dict[int, RequestMetrics]:
        """What is known so far of a request's outputs that have not ended, with their histories, by index."""
        now = self._clock()
        requests = self._requests.get(request_id, ())
        return {each.index: replace(each.metrics(), history=self.scheduler.history(each, now)) for each in requests}

    def predicted_wait_s(self) -> float:
        """Seconds until a request that came now would get its first token, by the cost model; 0 before it has learned.

        All tokens that go before it, in full steps beside the decodes that run.
        """
        if self.cost_model.num_steps < _NUM_STEPS_TO_LEARN:
            return 0.0
        running, waiting = (r[: num_interactive(r)] for r in (self.scheduler.running, self.scheduler.waiting))
        requests = (*running, *waiting)
        num_ahead = sum(request.num_uncomputed_tokens for request in requests if request.num_uncomputed_tokens > 1)
        room = max(1, self._max_num_batched_tokens - len(running))
        context = sum(request.num_computed_tokens for request in running)
        return num_ahead / room * self.cost_model.predict(self._max_num_batched_tokens, context)

    def predicted_s_until_ended(self, num_requests: int) -> float:
        """Seconds until so many outputs have ended at the latest, by the cost model; some request is unfinished."""
        scheduler = self.scheduler
        requests = itertools.chain(scheduler.running, scheduler.waiting)
        return seconds_until_ended(self.cost_model, requests, num_requests, max_num_seqs=self._max_num_seqs)

    def _delta(self, progress: Progress) -> OutputDelta:
        """The delta of a request; at a stop string the request ends here, without the tokens after it."""
        request = progress.request
        decoded = self._outputs.decode(progress)
        if decoded.has_failed:
            self.scheduler.finish(request, reason="error", now=self._clock())
        if decoded.stop is not None:
            self.scheduler.stop_at_text(request, stop=decoded.stop, now=self._clock())
        if decoded.num_dropped:
            self.scheduler.drop_last(request, decoded.num_dropped)
        delta = self._outputs.delta(progress, decoded)
        if request.is_finished:
            self._forget(request)
        return delta

    def _forget(self, request: Request) -> None:
        self._outputs.forget(request)
        if self.speculation is not None:
            self.speculation.forget(request)
        siblings = self._requests[request.request_id]
        siblings.remove(request)
        if not siblings:
            del self._requests[request.request_id]
