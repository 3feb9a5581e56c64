"""OverlappedWorld: a World whose steps run ahead of their results, over a fake model on a simulated stream."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, TextIO

from audit import Audit, NoAudit
from beside_core import Speculation, Speculator
from fake_model import VOCAB_SIZE, WAS_BAD, FakeModel, Faults, Seer
from simulated_stream import SimulatedEvent, SimulatedStream
from world import World
from world_settings import Conditions

from splitfuse.engine.core.batch import Batch, BatchRow, Moves, RowOutput
from splitfuse.engine.core.engine_core import EngineCore
from splitfuse.engine.core.plan import Pace, Plan, Queues
from splitfuse.engine.core.request import Request
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.core.step_pipeline import StepPipeline, StepState, Work


class RequestSnapshot:
    """Copy of a request at a launch: its tokens so far, perhaps less the last one, and their blocks."""

    def __init__(self, row: BatchRow) -> None:
        self.request = row.request
        self.seed, self.tenant = row.request.seed, row.request.tenant
        self.token_ids = row.request.token_ids[: row.end]
        self.block_table = row.request.block_table[:]

    def __hash__(self) -> int:
        return hash(self.request)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.request


@dataclass
class FakePending:
    event: SimulatedEvent
    rows: list[BatchRow]
    outputs: list[RowOutput] | None = None
    error: Exception | None = None

    def wait(self) -> list[RowOutput]:
        self.event.wait()
        if self.error is not None:
            raise self.error
        assert self.outputs is not None, "outputs are read before they have come"
        return list(self.outputs)


class FakeLauncher:
    """Launcher like the engine's own: copies are read at the launch, all else when the device gets to it.

    FakeLauncher is the runner, too: steps that run alone wait for all earlier work.
    """

    has_idle_work = False

    def __init__(self, model: FakeModel, stream: SimulatedStream) -> None:
        self._model = model
        self._stream = stream
        self._sampled: dict[Request, int] = {}  # on the device: tokens of the last step that ended
        self.in_flight: list[FakePending] = []

    def move(self, moves: Moves) -> None:
        self._stream.run(lambda: self._model.move(moves))

    def run(self, batch: Batch) -> list[RowOutput]:
        self._stream.synchronize()
        return self._model.run(batch)

    def do_idle_work(self) -> None: ...

    def stats(self) -> dict[str, int]:
        return {}

    def launch(self, batch: Batch) -> FakePending:
        faults, self._model.faults = self._model.faults, Faults()
        rows: list[Any] = [row._replace(request=RequestSnapshot(row)) for row in batch.rows]  # type: ignore[arg-type]
        if self._model_fails_to_launch(faults):
            raise RuntimeError("no room for the step")
        pending = FakePending(SimulatedEvent(self._stream, 0), rows)
        self.in_flight.append(pending)
        self._stream.run(lambda: self._compute(pending, faults))
        pending.event = self._stream.record()
        return pending

    def _model_fails_to_launch(self, faults: Faults) -> bool:
        return faults.raises == 1000

    def _compute(self, pending: FakePending, faults: Faults) -> None:
        self.in_flight.remove(pending)
        for row in pending.rows:
            tokens = row.request.token_ids
            if len(tokens) < row.end:
                tokens.append(self._sampled.get(row.request.request, -1))
        outer, self._model.faults = self._model.faults, faults
        try:
            pending.outputs = self._model.run(Batch(0, pending.rows))
        except Exception as exc:
            pending.error = exc
        self._model.faults = outer
        outputs = zip(pending.rows, pending.outputs or [], strict=pending.error is None)
        self._sampled = {row.request.request: each.token_ids[0] for row, each in outputs if each.token_ids}  # type: ignore[attr-defined]


class OverlappedAudit(Audit):
    def __init__(self, core: EngineCore, model: FakeModel, settings: Any) -> None:
        super().__init__(core, model, settings)
        self._fairness = None
        self._listen(core.scheduler)

    def _listen(self, scheduler: Scheduler) -> None:
        planner = scheduler._planner
        plan, apply = planner.plan, scheduler._apply

        def planned(queues: Queues, *, max_tokens: int, pace: Pace, **more: Any) -> Plan:
            self._schedule.before(pace._replace(budget=max_tokens))
            return plan(queues, max_tokens=max_tokens, pace=pace, **more)

        def applied(made: Plan, now: float, *, needs_host: bool) -> Batch:
            batch = apply(made, now, needs_host=needs_host)
            self._schedule.check(batch)
            self._memory.check_writes(batch)
            return batch

        planner.plan, scheduler._apply = planned, applied  # type: ignore[method-assign]

    def check_in_flight(self, pending: Iterable[FakePending]) -> None:
        """Check that requests still hold every block that the device has yet to read or write for them."""
        references = self._memory._blocks.device._references
        for row in (row for step in pending for row in step.rows):
            snapshot: Any = row.request
            held = snapshot.request.block_table
            assert held[: len(snapshot.block_table)] == snapshot.block_table, (
                f"{snapshot.request} lost blocks in flight"
            )
            assert all(references[block] for block in snapshot.block_table), "a block is free that a step will use"


class DraftsNowAndThen(Speculation):
    """Drafter for random steps, so that steps with and without drafts follow each other."""

    def __init__(self, rng: random.Random, drafter: Seer, **settings: Any) -> None:
        super().__init__(drafter, adaptive=False, **settings)
        self._rng = rng

    def skips_step(self) -> bool:
        super().skips_step()
        return self._rng.random() < 0.7


class OverlappedWorld(World):
    """World driven like AsyncEngine on a GPU. Every third seed drafts in some steps."""

    @property
    def drafts(self) -> bool:
        return self._seed % 3 == 0 and self.settings.max_drafts > 0

    def _speculation(self) -> Speculator | None:
        if not self.drafts:
            return None
        rng, settings = random.Random(self._seed), self.settings
        return DraftsNowAndThen(rng, Seer(rng.random()), max_drafts=settings.max_drafts, vocab_size=VOCAB_SIZE)

    def _make_pipeline(self, recording: TextIO | None) -> StepPipeline:
        rng = random.Random(self._rng.getrandbits(32))
        self._stream = SimulatedStream(rng, laziness=rng.choice([0.1, 0.5, 0.9, 1.0]))
        self._launcher = FakeLauncher(self._model, self._stream)
        return StepPipeline(self._make_core(recording, max_steps_in_flight=2), self._launcher, self._launcher)

    def _make_audit(self, *, outputs_only: bool) -> Audit:
        return (NoAudit if outputs_only else OverlappedAudit)(self._core, self._model, self.settings)

    def _step(self, conditions: Conditions) -> None:
        self.num_steps += 1
        if self._seed % 2:  # no slot goes bad, so no request may ever read a bad one
            conditions = replace(conditions, corruption=0.0)
        self._happen(conditions)
        self._clients.receive(self._core.expire(), self._now)
        self._clients.check_late(self._now)
        work = self._pipeline.schedule()
        if work is None:
            self._now += 0.01
        else:
            self._take(work, conditions)
        self._look()
        if self._clients.streams and self._chance(0.1):
            self._audit.look_up(self._rng.choice(list(self._clients.streams.values())))

    def _take(self, work: Work, conditions: Conditions) -> None:
        step = work.launch or work.collect
        assert step is not None
        if step.state is not StepState.LAUNCHED:
            self._count(step.scheduled.batch)
            self._model.faults = self._random_faults(step.scheduled.batch, conditions)
        self._happen(conditions)
        self._stream.drift()
        outputs = self._pipeline.run(work)
        self._look()
        self._happen(conditions)
        batch = work.collect.scheduled.batch if work.collect else Batch(0, [])
        self._saw("ahead" if work.launch and work.collect else "alone")
        self._now += (0.002 + 1e-4 * batch.num_tokens) * (0.8 + 0.4 * self._rng.random())
        failed = [row for row, output in zip(batch.rows, outputs, strict=True) if output.failure is not None]
        for row, output in zip(batch.rows, outputs, strict=True):
            if output.failure is not None and self._seed % 2 and not row.request.is_finished:
                assert output.failure.message != WAS_BAD, f"{row.request} reads what a failed step has left"
        tables = [list(row.request.block_table) for row in failed]
        output = self._pipeline.update(work, outputs)
        if output is not None:
            self._audit.after_results(batch, self._clients.receive(output.deltas, self._now), failed=tables)
        self._clients.check_aborted()

    def _look(self) -> None:
        self._audit.after_step()
        if isinstance(self._audit, OverlappedAudit):
            self._audit.check_in_flight(self._launcher.in_flight)
