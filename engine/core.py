"""EngineCore: the step loop without asyncio: schedule, run, update. LLM and AsyncEngine drive it."""

import logging
import time
import uuid
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TextIO

from .batch import Batch, Moves, RowFailure, RowResult, RunResult, SampledToken, ScoredRow
from .config import EngineConfig
from .errors import ConstraintError, RequestFailedError
from .outputs import OutputDelta, PromptLogprobs, StepStats
from .request import Request
from .scheduler.async_scheduler import OverlappedScheduler
from .scheduler.block_manager import BlockManager
from .scheduler.budget import step_budget
from .scheduler.cost_model import CostModel
from .scheduler.scheduler import Progress, Scheduler
from .simulation.recording import RecordingScheduler
from .spec_decode.draft_length import Drafted
from .spec_decode.manager import Speculation, accepted_per_position
from .tokenizer.detokenizer import TextStream
from .tokenizer.tokenizer import Tokenizer

# After so many steps the cost model's price of a token is worth acting on.
_NUM_STEPS_TO_LEARN = 20

_log = logging.getLogger("splitfuse.engine")


class Runner(Protocol):
    """Moves blocks and computes batches; ModelRunner in life, fakes in tests."""

    def move(self, moves: Moves) -> None: ...

    def run(self, batch: Batch) -> list[RunResult]: ...


@dataclass(frozen=True, slots=True)
class StepOutput:
    """What a step brought."""

    deltas: list[OutputDelta]
    stats: StepStats | None  # None if there was nothing to compute


class EngineCore:
    """Holds the unfinished requests and takes them through steps.

    `schedule`, `update`, `add` and `abort` belong to one thread; `execute` may run in another in between. Turns say
    when each is called. `is_overlapped`: a step may be scheduled before the one before it has been updated.
    """

    def __init__(
        self,
        config: EngineConfig,
        runner: Runner,
        *,
        num_blocks: int,
        num_host_blocks: int = 0,
        seconds_per_block: float | None = None,
        tokenizer: Tokenizer | None,
        recording: TextIO | None = None,
        speculation: Speculation | None = None,
        is_overlapped: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.blocks = BlockManager(
            num_blocks=num_blocks,
            block_size=config.block_size,
            num_host_blocks=num_host_blocks,
            prefix_caching=config.enable_prefix_caching,
        )
        self.allocator = self.blocks.device
        self.scheduler = OverlappedScheduler(config, self.blocks) if is_overlapped else Scheduler(config, self.blocks)
        if recording is not None:
            assert not is_overlapped, "a recording tells of one step at a time"
            self.scheduler = RecordingScheduler(config, self.blocks, recording)
        self.scheduler.costs.seconds_per_block = seconds_per_block
        self._runner = runner
        if recording is not None:
            # An LLM has no end that anybody tells it; the file is whole when the engine goes.
            weakref.finalize(self, recording.close)
        self._tokenizer = tokenizer
        self.speculation = speculation
        self._clock = clock
        self.cost_model = CostModel()
        self._target_itl_s = None if config.target_itl_ms is None else config.target_itl_ms / 1000
        self._max_num_batched_tokens = config.max_num_batched_tokens
        self._texts: dict[Request, TextStream] = {}
        self._requests: dict[str, list[Request]] = {}
        self._prompt_logprobs: dict[Request, PromptLogprobs] = {}  # of those who asked, until their first token
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
        for request in requests:
            self.scheduler.add(request)
            if request.is_scored:
                self._prompt_logprobs[request] = PromptLogprobs(request.params.prompt_logprobs or 0)
            if self._tokenizer is not None:
                self._texts[request] = TextStream(
                    self._tokenizer,
                    request.token_ids,
                    stop=request.params.stop,
                    include_stop=request.params.include_stop_str_in_output,
                    skip_special_tokens=request.params.skip_special_tokens,
                )

    def abort(self, request_id: str) -> list[OutputDelta]:
        """End a request. Outputs not in flight end now; the others' last delta comes with the step under way."""
        deltas = []
        for request in list(self._requests.get(request_id, ())):
            if self.scheduler.finish(request, reason="abort", now=self._clock()):
                deltas.append(self._delta(Progress(request)))
        return deltas

    def abort_all(self) -> list[OutputDelta]:
        """End every request."""
        return [delta for request_id in list(self._requests) for delta in self.abort(request_id)]

    def expire(self) -> list[OutputDelta]:
        """End what has run out of time."""
        return [self._delta(Progress(request)) for request in self.scheduler.expire(self._clock())]

    def schedule(self) -> tuple[Batch, float] | None:
        """The next step and when it began, or None if there is nothing to do."""
        start = self._clock()
        drafts = None if self.speculation is None else self.speculation.wanted(self.scheduler.running)
        batch = self.scheduler.schedule(start, budget=self._budget(), drafts=drafts)
        return None if batch is None else (batch, start)

    def _budget(self) -> int | None:
        """Tokens of the next step such that who decodes in it gets its token in time; None = all there may be."""
        if self._target_itl_s is None:
            return None
        return step_budget(
            self.cost_model,
            self.scheduler.running,
            target_s=self._target_itl_s,
            maximum=self._max_num_batched_tokens,
            block_size=self.allocator.block_size,
        )

    def _learn(self, batch: Batch, results: list[RunResult], seconds: float) -> list[Drafted]:
        """What the step cost, and what became of its drafts."""
        drafted = [] if self.speculation is None else self.speculation.settle(batch, results, seconds)
        num_not_drafted = sum(row.num_drafts for row in batch.rows) - sum(each.num_drafted for each in drafted)
        num_tokens = batch.num_tokens - num_not_drafted
        self.cost_model.observe(num_tokens, sum(row.start for row in batch.rows), seconds)
        if self.cost_model.num_steps >= _NUM_STEPS_TO_LEARN:
            self.scheduler.costs.seconds_per_token = self.cost_model.b
        return drafted

    def predicted_wait_s(self) -> float:
        """Seconds until a request that came now would get its first token, by the cost model; 0 before it has learned.

        All tokens that go before it, in full steps beside the decodes that run.
        """
        if self.cost_model.num_steps < _NUM_STEPS_TO_LEARN:
            return 0.0
        requests = (*self.scheduler.running, *self.scheduler.waiting)
        num_ahead = sum(request.num_uncomputed_tokens for request in requests if request.num_uncomputed_tokens > 1)
        room = max(1, self._max_num_batched_tokens - len(self.scheduler.running))
        context = sum(request.num_computed_tokens for request in self.scheduler.running)
        return num_ahead / room * self.cost_model.predict(self._max_num_batched_tokens, context)

    def execute(self, batch: Batch) -> list[RunResult]:
        """Run the batch; if that raises, find out whose fault it is by halves and fail that row alone.

        A failure to move blocks is nobody's fault and leaves the cache unknown: it is raised.
        """
        if any(batch.moves):
            self._runner.move(batch.moves)
        if not batch.rows:
            return []
        if any(len(row.draft_token_ids) < row.num_drafts for row in batch.rows):
            return self._execute_with_drafts(batch)
        try:
            return self._runner.run(batch)
        except Exception as exc:
            if len(batch.rows) == 1:
                return [_failure(batch.rows[0].request, exc)]
            _log.warning("a step with %d rows failed (%s); trying halves", len(batch.rows), type(exc).__name__)
        middle = len(batch.rows) // 2
        return self.execute(batch.subset(batch.rows[:middle])) + self.execute(batch.subset(batch.rows[middle:]))

    def _execute_with_drafts(self, batch: Batch) -> list[RunResult]:
        """Fill in the drafts, of which there may be fewer than planned, and run the rows in the order this makes."""
        assert self.speculation is not None
        drafted = self.speculation.draft(batch)
        results = dict(zip((row.request for row in drafted.rows), self.execute(drafted), strict=True))
        return [results[row.request] for row in batch.rows]

    def update(self, batch: Batch, results: list[RunResult], start: float) -> StepOutput:
        """Book the step and turn tokens into text."""
        now = self._clock()
        drafted = self._learn(batch, results, now - start)
        progress = self.scheduler.update(batch, self._without_scores(batch, results), now)
        deltas = [self._delta(item) for item in progress]
        return StepOutput(deltas, self._stats(batch, progress, deltas, drafted, start))

    def _without_scores(self, batch: Batch, results: list[RunResult]) -> list[RowResult]:
        """The results as the scheduler wants them; what rows scored is kept here."""
        if not self._prompt_logprobs:
            return results  # type: ignore[return-value]  # nobody asked for scores, so no row has any
        plain: list[RowResult] = []
        for row, result in zip(batch.rows, results, strict=True):
            if isinstance(result, ScoredRow):
                if row.request in self._prompt_logprobs:  # it may have ended meanwhile
                    self._prompt_logprobs[row.request].extend(result.logprobs)
                plain.append(result.result)
            else:
                plain.append(result)
        return plain

    def step(self) -> StepOutput:
        """One whole step in this thread."""
        expired = self.expire()
        scheduled = self.schedule()
        if scheduled is None:
            return StepOutput(expired, None)
        batch, start = scheduled
        output = self.update(batch, self.execute(batch), start)
        return StepOutput(expired + output.deltas, output.stats)

    def _delta(self, progress: Progress) -> OutputDelta:
        request, sampled = progress.request, progress.sampled
        num_tokens = request.num_tokens
        prompt_logprobs = self._prompt_logprobs.pop(request, None) if sampled else None
        text, error = self._text(request, sampled)
        if progress.failure is not None:
            error = error or _request_error(request, progress.failure)
        if request.is_finished:
            self._forget(request)
        sampled = sampled[: len(sampled) + request.num_tokens - num_tokens]
        logprobs = tuple(token.logprobs for token in sampled if token.logprobs is not None)
        return OutputDelta(
            request_id=request.request_id,
            index=request.index,
            text=text,
            token_ids=tuple(token.token_id for token in sampled),
            logprobs=logprobs or None,
            finish_reason="error" if error else request.finish_reason,
            stop_reason=request.stop_reason,
            metrics=request.metrics() if request.is_finished else None,
            error=error,
            prompt_logprobs=prompt_logprobs,
        )

    def _text(self, request: Request, sampled: Sequence[SampledToken]) -> tuple[str, RequestFailedError | None]:
        """The text of a request's new tokens. Ends the request, without the tokens behind, where a stop string is met
        or a token cannot be told.
        """
        stream = self._texts.get(request)
        if stream is None:
            return "", None
        text, error = "", None
        num_tokens = request.num_tokens - len(sampled)
        for token in sampled or (None,):
            num_tokens += token is not None
            try:
                text += self._push(request, stream, token, num_tokens)
            except Exception as exc:  # text is one request's own affair
                self.scheduler.finish(request, reason="error", now=self._clock())
                error = _request_error(request, _failure(request, exc))
            if error is None and stream.stopped_by is not None:
                self.scheduler.stop_at_text(request, stop=stream.stopped_by, now=self._clock())
            if error is not None or stream.stopped_by is not None:
                self.scheduler.cut(request, num_tokens)
                break
        return text, error

    def _push(self, request: Request, stream: TextStream, token: SampledToken | None, num_tokens: int) -> str:
        """The text that is certain with this token, which makes them so many."""
        params = request.params
        is_last = request.is_finished and num_tokens == request.num_tokens
        token_id = None if token is None else token.token_id
        is_end = is_last and request.finish_reason == "stop" and token_id in request.stop_token_ids
        return stream.push(
            None if is_end and not params.include_stop_str_in_output else token_id,
            last=is_last,
            may_stop=num_tokens - request.num_prompt_tokens > params.min_tokens,
        )

    def _forget(self, request: Request) -> None:
        self._texts.pop(request, None)
        self._prompt_logprobs.pop(request, None)
        if self.speculation is not None:
            self.speculation.forget(request)
        siblings = self._requests[request.request_id]
        siblings.remove(request)
        if not siblings:
            del self._requests[request.request_id]

    def _stats(
        self, batch: Batch, progress: list[Progress], deltas: list[OutputDelta], drafted: list[Drafted], start: float
    ) -> StepStats:
        now = self._clock()
        by_mode = self.scheduler.num_preemptions_by_mode
        given_way = {mode: count - self._num_preemptions_seen[mode] for mode, count in by_mode.items()}
        self._num_preemptions_seen = dict(by_mode)
        num_decode_tokens = batch.num_decode_tokens
        return StepStats(
            step=batch.step,
            time=now,
            duration=now - start,
            num_prefill_tokens=batch.num_tokens - num_decode_tokens,
            num_decode_tokens=num_decode_tokens,
            num_running=len(self.scheduler.running),
            num_waiting=len(self.scheduler.waiting),
            num_used_blocks=self.allocator.num_used_blocks,
            num_blocks=self.allocator.num_blocks,
            num_preempted=sum(given_way.values()),
            num_swapped_out=given_way["swap"],
            num_output_tokens=sum(len(delta.token_ids) for delta in deltas),
            num_drafts=len(drafted),
            num_draft_tokens=sum(each.num_drafted for each in drafted),
            num_accepted_tokens_per_pos=accepted_per_position(drafted),
            ttfts=tuple(now - item.request.arrival_time for item in progress if item.sampled and item.gap is None),
            itls=tuple(item.gap for item in progress if item.gap is not None),
        )


def _failure(request: Request, exc: Exception) -> RowFailure:
    error_id = uuid.uuid4().hex[:12]
    _log.error("request %s failed, error id %s", request.request_id, error_id, exc_info=exc)
    return RowFailure("the engine failed on this request", error_id)


def _request_error(request: Request, failure: RowFailure) -> RequestFailedError:
    error_id = failure.error_id or uuid.uuid4().hex[:12]
    if failure.param is not None:
        _log.info("request %s cannot be met: %s, error id %s", request.request_id, failure.message, error_id)
        return ConstraintError(failure.message, error_id=error_id, param=failure.param)
    if failure.error_id is None:  # no exception has been logged for it
        _log.error("request %s failed: %s, error id %s", request.request_id, failure.message, error_id)
    return RequestFailedError(f"{failure.message} (error id {error_id})", error_id=error_id)
