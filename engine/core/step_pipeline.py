"""StepPipeline: schedule, run, update. The one way in which steps are taken, by LLM, AsyncEngine, simulation and tests.

    without a launcher     schedule N | run N | update N | schedule N+1 | run N+1 | …
    with a launcher        schedule N+1 while N runs on the device | update N | schedule N+2 | …

`schedule` and `update` belong to the thread of the EngineCore; `run` may be called in another one in between.
"""

import logging
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import NamedTuple

from .batch import NO_OUTPUT, Batch, RowOutput
from .engine_core import EngineCore, ScheduledStep, StepOutput
from .isolation import IsolatingRunner
from .ports import Launcher, PendingOutputs, Runner

_log = logging.getLogger("splitfuse.engine")


class StepState(Enum):
    """The state of a step in flight."""

    SCHEDULED = "to run synchronously when the steps before it have been updated"
    LAUNCHED = "on the device"
    LOST = "it was given a token that is another one now, or it or a step before it failed: it runs synchronously"


@dataclass(eq=False, slots=True)
class InFlightStep:
    """A step that has been scheduled and not been updated."""

    scheduled: ScheduledStep
    to_run: Batch  # the batch, without moves that have been made
    state: StepState = StepState.SCHEDULED
    pending: PendingOutputs | None = None  # while it is LAUNCHED


class Work(NamedTuple):
    """What `run` is to do: launch a step, then wait for the outputs of one."""

    launch: InFlightStep | None
    collect: InFlightStep | None


class StepPipeline:
    """Takes an EngineCore through its steps.

    With a launcher a step is scheduled and launched while the one before it runs. A step that needs the host runs
    synchronously, when no other is in flight; so does one that failed to launch or whose outputs failed to come, and
    every step that was launched after it: bisecting then finds the row that failed.
    """

    def __init__(self, core: EngineCore, runner: Runner, launcher: Launcher | None = None) -> None:
        """`core` allows two steps in flight if there is a launcher."""
        assert core.scheduler.max_steps_in_flight == (1 if launcher is None else 2)
        self.core = core
        self._runner = IsolatingRunner(runner, None if core.speculation is None else core.speculation.draft)
        self._launcher = launcher
        self._steps: deque[InFlightStep] = deque()  # oldest first
        self._last_end = float("-inf")

    @property
    def is_busy(self) -> bool:
        """Whether a step is in flight, which has to be taken to its end even if no request is left."""
        return bool(self._steps)

    @property
    def has_work(self) -> bool:
        """Whether a request is unfinished or a step is in flight."""
        return bool(self._steps) or self.core.num_unfinished > 0

    def step(self) -> StepOutput:
        """Schedule, run and update in this thread. With a launcher the update may be of the step before."""
        expired = self.core.expire()
        work = self.schedule()
        output = None if work is None else self.update(work, self.run(work))
        return StepOutput(expired + (output.deltas if output else []), output.stats if output else None)

    def schedule(self) -> Work | None:
        """Decide what is next; None if there is nothing to do."""
        oldest = self._steps[0] if self._steps else None
        if oldest is not None and oldest.state is not StepState.LAUNCHED:
            return Work(None, oldest)
        scheduled = self.core.schedule()
        if scheduled is None:
            return None if oldest is None else Work(None, oldest)
        step = InFlightStep(scheduled, scheduled.batch)
        self._steps.append(step)
        is_synchronous = self._launcher is None or scheduled.batch.needs_host or not scheduled.batch.rows
        if not is_synchronous:
            return Work(step, oldest)
        return Work(None, oldest or step)

    def run(self, work: Work) -> list[RowOutput]:
        """Compute. The outputs of the step to collect, if there is one."""
        if work.launch is not None:
            self._launch(work.launch)
        return [] if work.collect is None else self._collect(work.collect)

    def _launch(self, step: InFlightStep) -> None:
        assert self._launcher is not None
        batch = step.scheduled.batch
        if any(batch.moves):
            self._launcher.move(batch.moves)
            step.to_run = batch.subset(batch.rows)
        try:
            step.pending = self._launcher.launch(batch)
            step.state = StepState.LOST if step.pending is None else StepState.LAUNCHED
        except Exception as exc:
            step.state = StepState.LOST
            _log.warning("a step with %d rows failed to start (%s)", len(batch.rows), type(exc).__name__)

    def _collect(self, step: InFlightStep) -> list[RowOutput]:
        if step.state is StepState.LAUNCHED:
            assert step.pending is not None
            try:
                return step.pending.wait()
            except Exception as exc:
                _log.warning("a step with %d rows failed (%s)", len(step.to_run.rows), type(exc).__name__)
                for lost in self._steps:  # those after it were given tokens that never came
                    lost.state = StepState.LOST
        if step.state is StepState.SCHEDULED:
            return self._runner.run(step.to_run)
        # A request that has ended meanwhile may not even have all the tokens of its row.
        rows = [row for row in step.to_run.rows if not row.request.is_finished]
        outputs = self._runner.run(replace(step.to_run, rows=rows))
        by_request = dict(zip((row.request for row in rows), outputs, strict=True))
        return [by_request.get(row.request, NO_OUTPUT) for row in step.to_run.rows]

    def update(self, work: Work, outputs: Sequence[RowOutput]) -> StepOutput | None:
        """Apply what `run` brought; None if nothing was to be collected."""
        step = work.collect
        if step is None:
            return None
        assert step is self._steps[0], "steps end in the order in which they were scheduled"
        self._steps.popleft()
        # It began when the one before it ended: until then the device was busy with that.
        start = max(step.scheduled.start, self._last_end)
        output = self.core.update(step.scheduled._replace(start=start), outputs)
        assert output.stats is not None
        self._last_end = output.stats.time
        return output

    def stats(self) -> dict[str, int]:
        """The launcher's counters."""
        return {} if self._launcher is None else self._launcher.stats()

    @property
    def has_idle_work(self) -> bool:
        """Whether there is something to do while no step is in flight: CUDA graphs to capture."""
        return self._launcher is not None and self._launcher.has_idle_work

    def do_idle_work(self) -> None:
        """A part of it; in the thread of `run`."""
        if self._launcher is not None:
            self._launcher.do_idle_work()
