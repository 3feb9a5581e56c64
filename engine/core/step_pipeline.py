"""StepPipeline: schedule, run, update. LLM, AsyncEngine, simulation and tests all take their steps by it.

    without a launcher     schedule N | run N | update N | schedule N+1 | run N+1 | …
    with a launcher        schedule N+1 while N runs on the device | update N | schedule N+2 | …

`schedule` and `update` belong to the thread of the EngineCore; `run` may be called in another one in between.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from ..errors import FAILED_ON_REQUEST, RankLostError, is_device_lost, is_out_of_memory, new_error_id
from .batch import NO_OUTPUT, Batch, RowFailure, RowOutput
from .engine_core import EngineCore, ScheduledStep, StepOutput
from .ports import Launcher, PendingOutputs, Runner
from .request import Request

_log = logging.getLogger("splitfuse.engine")


class StepState(Enum):
    """State of a step in flight."""

    SCHEDULED = "runs synchronously once the steps before it have been updated"
    LAUNCHED = "is on the device"
    MUST_RERUN = "its input token was replaced, or it or an earlier step failed; rerun it synchronously"


@dataclass(eq=False, slots=True)
class InFlightStep:
    """Step that was scheduled and is not updated yet."""

    scheduled: ScheduledStep
    to_run: Batch  # the batch, without moves already made
    state: StepState = StepState.SCHEDULED
    pending: PendingOutputs | None = None  # while LAUNCHED


class Work(NamedTuple):
    """Task for `run`: launch a step, then wait for the outputs of a step."""

    launch: InFlightStep | None
    collect: InFlightStep | None


class StepPipeline:
    """Driver of an EngineCore's steps.

    With a launcher, a step is scheduled and launched while the step before it runs. A step that needs the host runs
    synchronously, when no other is in flight. A step that failed to launch or to bring its outputs is rerun
    synchronously, and so is every step launched after it: bisecting then finds the row that failed.
    """

    def __init__(self, core: EngineCore, runner: Runner, launcher: Launcher | None = None) -> None:
        """`core` allows two steps in flight if there is a launcher, else one."""
        assert core.scheduler.max_steps_in_flight == (1 if launcher is None else 2)
        self.core = core
        self._runner = IsolatingRunner(runner, core.speculation.draft)
        self.launcher = launcher
        self.is_paused = False  # no further step is scheduled
        self._steps: deque[InFlightStep] = deque()  # oldest first
        self._last_end = float("-inf")

    @property
    def is_busy(self) -> bool:
        """True if a step is in flight, which has to be taken to its end even if no request is left."""
        return bool(self._steps)

    @property
    def has_work(self) -> bool:
        """True if a request is unfinished or a step is in flight."""
        return bool(self._steps) or self.core.num_unfinished > 0

    def step(self) -> StepOutput:
        """Schedule, run and update in this thread. With a launcher the update may belong to the step before."""
        expired = self.core.expire()
        work = self.schedule()
        output = None if work is None else self.update(work, self.run(work))
        return StepOutput(expired + (output.deltas if output else []), output.stats if output else None)

    def schedule(self) -> Work | None:
        """Decide what to run next; None if there is nothing to do."""
        oldest = self._steps[0] if self._steps else None
        if oldest is not None and oldest.state is not StepState.LAUNCHED:
            return Work(None, oldest)
        scheduled = None if self.is_paused else self.core.schedule()
        if scheduled is None:
            return None if oldest is None else Work(None, oldest)
        step = InFlightStep(scheduled, scheduled.batch)
        self._steps.append(step)
        is_synchronous = self.launcher is None or scheduled.batch.needs_host or not scheduled.batch.rows
        return Work(None, oldest or step) if is_synchronous else Work(step, oldest)

    def run(self, work: Work) -> list[RowOutput]:
        """Compute. Return the outputs of the step to collect, if there is one."""
        if work.launch is not None:
            self._launch(work.launch)
        return [] if work.collect is None else self._collect(work.collect)

    def _launch(self, step: InFlightStep) -> None:
        assert self.launcher is not None
        batch = step.scheduled.batch
        if any(batch.moves):
            self.launcher.move(batch.moves)
            step.to_run = batch.subset(batch.rows)
        try:
            step.pending = self.launcher.launch(batch)
            step.state = StepState.MUST_RERUN if step.pending is None else StepState.LAUNCHED
        except Exception as exc:
            step.state = StepState.MUST_RERUN
            _log.warning("a step with %d rows failed to start (%s)", len(batch.rows), type(exc).__name__)

    def _collect(self, step: InFlightStep) -> list[RowOutput]:
        if step.state is StepState.LAUNCHED:
            assert step.pending is not None
            try:
                return step.pending.wait()
            except Exception as exc:
                _log.warning("a step with %d rows failed (%s)", len(step.to_run.rows), type(exc).__name__)
                for launched in self._steps:  # the later ones were launched with tokens that never came
                    launched.state = StepState.MUST_RERUN
        if step.state is StepState.SCHEDULED:
            return self._runner.run(step.to_run)
        # A request that has ended meanwhile may lack some tokens of its row.
        rows = [row for row in step.to_run.rows if not row.request.is_finished]
        outputs = self._runner.run(replace(step.to_run, rows=rows))
        by_request = dict(zip((row.request for row in rows), outputs, strict=True))
        return [by_request.get(row.request, NO_OUTPUT) for row in step.to_run.rows]

    def update(self, work: Work, outputs: Sequence[RowOutput]) -> StepOutput | None:
        """Apply the outputs of `run`; None if there was no step to collect."""
        step = work.collect
        if step is None:
            return None
        assert step is self._steps[0], "steps end in the order in which they were scheduled"
        self._steps.popleft()
        # A step begins when the step before it ends: until then the device was busy with that one.
        start = max(step.scheduled.start, self._last_end)
        output = self.core.update(step.scheduled._replace(start=start), outputs)
        assert output.stats is not None
        self._last_end = output.stats.time
        return output


class IsolatingRunner:
    """Runner of a batch, synchronously; if that raises, it bisects the batch, so that only the faulty row fails.

    A row fails when it has failed alone twice: some faults pass, such as a moment without memory. A failed try leaves
    no trace: rows write the same cache slots again, noise is keyed by seed and position, and a grammar rolls back to
    the tokens of its request. `draft` fills in the drafts of a batch that plans some.
    """

    def __init__(self, runner: Runner, draft: Callable[[Batch], Batch] | None = None) -> None:
        self._runner = runner
        self._draft = draft

    def run(self, batch: Batch) -> list[RowOutput]:
        """Return one output per row.

        A failure to move blocks leaves the cache in an unknown state: it is raised. So is the loss of the device.
        """
        if any(batch.moves):
            self._runner.move(batch.moves)
        if not batch.rows:
            return []
        if self._draft is None or not (batch.needs_host and any(row.num_drafts for row in batch.rows)):
            return self._run_isolated(batch)
        # There may be fewer drafts than planned, which changes the order of the rows.
        drafted = self._draft(batch)
        outputs = dict(zip((row.request for row in drafted.rows), self._run_isolated(drafted), strict=True))
        return [outputs[row.request] for row in batch.rows]

    def _run_isolated(self, batch: Batch, *, is_last_try: bool = False) -> list[RowOutput]:
        try:
            return self._runner.run(batch)
        except Exception as exc:
            if is_lost := is_device_lost(exc):
                _log.error("the GPU can no longer be used; the engine stops, restart the server")
            if is_lost or isinstance(exc, RankLostError):
                raise
            if is_last_try:
                return [RowOutput(failure=_failure(batch.rows[0].request, exc))]
            _log.warning("a step with %d rows failed (%s); trying again", len(batch.rows), _described(exc))
        if len(batch.rows) == 1:
            return self._run_isolated(batch, is_last_try=True)
        middle = len(batch.rows) // 2
        halves = batch.rows[:middle], batch.rows[middle:]
        return [output for rows in halves for output in self._run_isolated(batch.subset(rows))]


def _described(exc: Exception) -> str:
    way_out = "out of memory: lower --gpu-memory-utilization, --max-num-batched-tokens or --max-num-seqs"
    return way_out if is_out_of_memory(exc) else type(exc).__name__


def _failure(request: Request, exc: Exception) -> RowFailure:
    error_id = new_error_id()
    _log.error("request %s failed, error id %s", request.request_id, error_id, exc_info=exc)
    return RowFailure(FAILED_ON_REQUEST, error_id)
