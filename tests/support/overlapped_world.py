"""OverlappedWorld: a World that is driven a step ahead of its results, over a fake model on a simulated stream."""

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TextIO

from audit import Audit, NoAudit
from fake_model import WAS_BAD, FakeModel, Trouble
from schedule_audit import ScheduleAudit
from simulated_stream import SimulatedEvent, SimulatedStream
from world import World
from world_settings import Weather

from splitfuse.engine.batch import Batch, BatchRow, Moves, RowFailure, RowResult, RunResult, SampledToken
from splitfuse.engine.core import EngineCore, Runner
from splitfuse.engine.request import Request
from splitfuse.engine.scheduler.async_scheduler import OverlappedScheduler
from splitfuse.engine.scheduler.plan import Plan
from splitfuse.engine.step_pipeline import OverlappedTurns, Turn


class StagedRequest:
    """What a launch copies of a request: its tokens so far, perhaps less the last one, and where they lie."""

    def __init__(self, row: BatchRow) -> None:
        self.request = row.request
        self.seed, self.tenant = row.request.seed, row.request.tenant
        self.token_ids = row.request.token_ids[: row.end]
        self.block_table = list(row.request.block_table)

    def __hash__(self) -> int:
        return hash(self.request)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self.request


@dataclass
class FakePending:
    event: SimulatedEvent
    rows: list[BatchRow]
    results: list[RowResult] | None = None
    error: Exception | None = None

    def wait(self) -> list[RunResult]:
        self.event.wait()
        if self.error is not None:
            raise self.error
        assert self.results is not None, "results are read before they have come"
        return list(self.results)


class FakeLauncher:
    """Launches as the engine's own does: what it copies is read when it launches, all else when the device gets to it.

    It is the runner too: steps that run alone wait for all that was given before.
    """

    has_chore = False

    def __init__(self, model: FakeModel, stream: SimulatedStream) -> None:
        self._model = model
        self._stream = stream
        self._sampled: dict[Request, int] = {}  # on the device: the tokens of the step that it has done last
        self.under_way: list[FakePending] = []

    def move(self, moves: Moves) -> None:
        self._stream.run(lambda: self._model.move(moves))

    def run(self, batch: Batch) -> Sequence[RowResult]:
        self._stream.synchronize()
        return self._model.run(batch)

    def do_chore(self) -> None: ...

    def launch(self, batch: Batch) -> FakePending:
        trouble, self._model.trouble = self._model.trouble, Trouble()
        rows: list[Any] = [row._replace(request=StagedRequest(row)) for row in batch.rows]  # type: ignore[arg-type]
        if self._model_fails_to_launch(trouble):
            raise RuntimeError("no room for the step")
        pending = FakePending(SimulatedEvent(self._stream, 0), rows)
        self.under_way.append(pending)
        self._stream.run(lambda: self._compute(pending, trouble))
        pending.event = self._stream.record()
        return pending

    def _model_fails_to_launch(self, trouble: Trouble) -> bool:
        return trouble.raises == 1000

    def _compute(self, pending: FakePending, trouble: Trouble) -> None:
        self.under_way.remove(pending)
        for row in pending.rows:
            tokens = row.request.token_ids
            if len(tokens) < row.end:
                tokens.append(self._sampled.get(row.request.request, -1))
        outer, self._model.trouble = self._model.trouble, trouble
        try:
            pending.results = self._model.run(Batch(0, pending.rows))
        except Exception as exc:
            pending.error = exc
        self._model.trouble = outer
        results = zip(pending.rows, pending.results or [], strict=pending.error is None)
        self._sampled = {row.request.request: r.token_id for row, r in results if isinstance(r, SampledToken)}  # type: ignore[attr-defined]


class OverlappedScheduleAudit(ScheduleAudit):
    """Looks at decisions while the presumption holds on which they are made."""

    def _waits_for_its_leader(self, request: Request) -> bool:
        if super()._waits_for_its_leader(request):
            return True
        if request.num_output_tokens:
            return False
        rows = [row for row in self._scheduler._rows_under_way() if row.request is request.leader]  # type: ignore[attr-defined]
        return any(row.start < request.num_prompt_tokens for row in rows)


class OverlappedAudit(Audit):
    def __init__(self, core: EngineCore, model: FakeModel, settings: Any) -> None:
        super().__init__(core, model, settings)
        self._schedule = OverlappedScheduleAudit(settings.config, core.scheduler)
        self._fairness = None
        self._listen(core.scheduler)  # type: ignore[arg-type]

    def _listen(self, scheduler: OverlappedScheduler) -> None:
        plan, apply = scheduler._plan, scheduler._apply

        def planned(budget: int, drafts: Mapping[Request, int]) -> Plan:
            self._schedule.before(budget)
            return plan(budget, drafts)

        def applied(made: Plan, now: float) -> Batch:
            batch = apply(made, now)
            self._schedule.check(batch)
            self._memory.check_writes(batch)
            return batch

        scheduler._plan, scheduler._apply = planned, applied  # type: ignore[method-assign]

    def check_under_way(self, pending: Iterable[FakePending]) -> None:
        """What the device has yet to read and write is still held by the request for which it does."""
        references = self._memory._blocks.device._references
        for row in (row for each in pending for row in each.rows):
            staged: Any = row.request
            held = staged.request.block_table
            assert held[: len(staged.block_table)] == staged.block_table, f"{staged.request} lost blocks in flight"
            assert all(references[block] for block in staged.block_table), "a block is free that a step will use"


class OverlappedWorld(World):
    """As AsyncEngine drives it on a GPU."""

    def _make_core(self, recording: TextIO | None, runner: Runner | None = None) -> EngineCore:
        rng = random.Random(self._rng.getrandbits(32))
        self._stream = SimulatedStream(rng, laziness=rng.choice([0.1, 0.5, 0.9, 1.0]))
        self._launcher = FakeLauncher(self._model, self._stream)
        core = super()._make_core(recording, self._launcher)
        self._turns = OverlappedTurns(core, self._launcher)
        return core

    def _make_audit(self, *, listens_only: bool) -> Audit:
        return (NoAudit if listens_only else OverlappedAudit)(self._core, self._model, self.settings)

    def _step(self, weather: Weather) -> None:
        self.num_steps += 1
        if self._seed % 2:  # slots stay good: so nobody may ever read a bad one
            weather = replace(weather, goes_bad=0.0)
        self._happen(weather)
        self._clients.hear(self._core.expire(), self._now)
        self._clients.check_late(self._now)
        turn = self._turns.begin()
        if turn is None:
            self._now += 0.01
        else:
            self._take(turn, weather)
        self._look()
        if self._clients.streams and self._chance(0.1):
            self._audit.look_up(self._rng.choice(list(self._clients.streams.values())))

    def _take(self, turn: Turn, weather: Weather) -> None:
        launched = turn.launched or (turn.collected if turn.collected and turn.collected.pending is None else None)
        if launched is not None:
            self._count(launched.batch)
            self._model.trouble = self._draw_trouble(launched.batch, weather)
        self._happen(weather)
        self._stream.drift()
        results = self._turns.run(turn)
        self._look()
        self._happen(weather)
        batch = turn.collected.batch if turn.collected else Batch(0, [])
        self._saw("ahead" if turn.launched and turn.collected else "alone")
        self._now += (0.002 + 1e-4 * batch.num_tokens) * (0.8 + 0.4 * self._rng.random())
        pairs = list(zip(batch.rows, results, strict=True))
        for row, result in pairs:
            if isinstance(result, RowFailure) and self._seed % 2 and not row.request.is_finished:
                assert result.message != WAS_BAD, f"{row.request} reads what a failed step has left"
        tables = [list(row.request.block_table) for row, result in pairs if isinstance(result, RowFailure)]
        output = self._turns.end(turn, results)
        if output is not None:
            self._audit.after_results(batch, self._clients.hear(output.deltas, self._now), failed=tables)
        self._clients.check_aborted()

    def _look(self) -> None:
        self._audit.after_step()
        if isinstance(self._audit, OverlappedAudit):
            self._audit.check_under_way(self._launcher.under_way)

    @property
    def _is_over(self) -> bool:
        return super()._is_over and not self._turns.is_busy
