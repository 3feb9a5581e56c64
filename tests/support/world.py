"""World: an EngineCore over a fake model and a virtual clock, with seeded events and an audit of every step."""

import random
from collections import Counter, deque
from typing import Any, TextIO

from arrivals import Arrivals
from audit import Audit, NoAudit
from beside_core import OutputProcessor, Speculation, Speculator, observer_of, pacer_of, recorder_of
from clients import Clients, FakeText
from fake_model import VOCAB_SIZE, FakeModel, Faults, Seer
from world_settings import CALM, Conditions, random_conditions, random_settings

from splitfuse.engine.core.batch import Batch
from splitfuse.engine.core.block_manager import BlockManager, CacheSpec
from splitfuse.engine.core.cost_model import CostModel
from splitfuse.engine.core.engine_core import EngineCore
from splitfuse.engine.core.scheduler import Scheduler
from splitfuse.engine.core.step_pipeline import StepPipeline, Work

_LOOK_UP = 0.1  # share of steps with an extra lookup of a request's prefix


class World:
    """World of one seed. `run` raises an AssertionError with the seed and the last events if an audit fails."""

    test = "test_worlds.py"

    def __init__(self, seed: int, *, recording: TextIO | None = None, outputs_only: bool = False) -> None:
        """Build the world; `outputs_only`: audit only the outputs, not the inside of the engine."""
        self._seed = seed
        self._rng = random.Random(seed)
        self.settings = random_settings(self._rng)
        self._now = 1000.0
        self._model = FakeModel(
            num_blocks=self.settings.num_blocks,
            num_host_blocks=self.settings.num_host_blocks,
            block_size=self.settings.config.block_size,
        )
        self._pipeline = self._make_pipeline(recording)
        self._core = self._pipeline.core
        self._audit = self._make_audit(outputs_only=outputs_only)
        self._arrivals = Arrivals(self._rng, self.settings)
        self._clients = Clients(self._model)
        self.num_steps = 0
        self._seen: Counter[str] = Counter()
        self._events: deque[tuple[object, ...]] = deque(maxlen=24)

    def _make_pipeline(self, recording: TextIO | None) -> StepPipeline:
        return StepPipeline(self._make_core(recording), self._model)

    def _make_core(self, recording: TextIO | None, max_steps_in_flight: int = 1) -> EngineCore:
        settings = self.settings
        cache = CacheSpec(
            settings.num_blocks, settings.config.block_size, settings.num_host_blocks, settings.seconds_per_block
        )
        listener = None if recording is None else recorder_of(recording, settings.config, cache, max_steps_in_flight)
        scheduler = self._make_scheduler(
            cache, max_steps_in_flight=max_steps_in_flight, listener=listener, observer=observer_of(settings.config)
        )
        cost_model = CostModel()
        core = EngineCore(
            settings.config, scheduler, OutputProcessor(None), speculation=self._speculation(), cost_model=cost_model,
            pacer=pacer_of(settings.config, cost_model), clock=lambda: self._now,
        )  # fmt: skip
        if core.blocks.cache is not None:
            core.blocks.cache._hash = settings.hash
        if core.scheduler._counters is not None:
            core.scheduler._counters._max_tenants = settings.max_tenants
        return core

    def _make_scheduler(self, cache: CacheSpec, **options: Any) -> Scheduler:
        config = self.settings.config
        caching, weights = config.enable_prefix_caching, config.tenant_weights
        return Scheduler(config, BlockManager(cache, prefix_caching=caching, tenant_weights=weights), **options)

    def _speculation(self) -> Speculator | None:
        settings = self.settings
        if not settings.max_drafts:
            return None
        return Speculation(
            Seer(self._rng.random()),
            max_drafts=settings.max_drafts,
            vocab_size=VOCAB_SIZE,
            adaptive=settings.chooses_lengths,
            clock=lambda: self._now,
        )

    def _make_audit(self, *, outputs_only: bool) -> Audit:
        return (NoAudit if outputs_only else Audit)(self._core, self._model, self.settings)

    @property
    def seen(self) -> Counter[str]:
        """Counts of events so far."""
        endings = {f"ends by {reason}": count for reason, count in self._clients.endings.items()}
        drafts = self._core.speculation
        accepted = {"accepted drafts": getattr(drafts, "num_accepted_tokens", 0)}
        return self._seen + Counter(endings) + Counter(accepted) + Counter(self._core.scheduler.num_preemptions_by_mode)

    @property
    def fingerprint(self) -> int:
        """Fingerprint of all tokens in order."""
        return self._clients.fingerprint

    # Steps.

    def run(self, num_steps: int) -> None:
        """Run that many steps under changing conditions, with calm periods until no request is left."""
        try:
            while self.num_steps < num_steps:
                conditions = random_conditions(self._rng)
                for _ in range(min(self._rng.randint(20, 300), num_steps - self.num_steps)):
                    self._step(conditions)
                if self._chance(0.3):
                    self._calm_down()
            self._calm_down()
        except Exception as exc:
            raise AssertionError(self._story(exc, num_steps)) from exc

    def _calm_down(self) -> None:
        """Run without arrivals and faults: all requests must end in a bounded number of steps, without a trace."""
        streams = self._clients.streams
        most = 50 + 4 * sum(stream.request.max_num_tokens for stream in streams.values())
        for _ in range(most):
            if self._is_over:
                break
            self._step(CALM)
        assert not streams, f"{len(streams)} outputs have not ended after {most} calm steps"
        self._audit.when_empty()

    @property
    def _is_over(self) -> bool:
        return not self._pipeline.has_work

    def _step(self, conditions: Conditions) -> None:
        """Run a step like AsyncEngine's loop: requests come and go before the step and while it is in flight."""
        self.num_steps += 1
        self._happen(conditions)
        self._clients.receive(self._core.expire(), self._now)
        self._clients.check_late(self._now)
        self._audit.before_decision()
        work = self._pipeline.schedule()
        if work is None:
            self._audit.after_decision(None)
            self._now += 0.01
        else:
            assert work.collect is not None
            self._audit.after_decision(work.collect.scheduled.batch)
            self._compute(work, work.collect.scheduled.batch, conditions)
        self._audit.after_step()
        if self._clients.streams and self._chance(_LOOK_UP):
            self._audit.look_up(self._rng.choice(list(self._clients.streams.values())))

    def _compute(self, work: Work, batch: Batch, conditions: Conditions) -> None:
        self._count(batch)
        self._happen(conditions)
        self._model.faults = self._random_faults(batch, conditions)
        outputs = self._pipeline.run(work)
        tables = [
            list(row.request.block_table)
            for row, output in zip(batch.rows, outputs, strict=True)
            if output.failure is not None
        ]
        self._happen(conditions)
        self._now += (0.002 + 1e-4 * batch.num_tokens) * (0.8 + 0.4 * self._rng.random())
        output = self._pipeline.update(work, outputs)
        assert output is not None
        with_tokens = self._clients.receive(output.deltas, self._now)
        self._clients.check_aborted()
        self._audit.after_results(batch, with_tokens, failed=tables)

    # Events.

    def _happen(self, conditions: Conditions) -> None:
        streams, settings, rng = self._clients.streams, self.settings, self._rng
        if len(streams) < conditions.most_unfinished and self._chance(conditions.arrival):
            self._arrive(conditions)
        if streams and self._chance(conditions.abort):
            self._abort(rng.choice(list(streams))[0])
        if streams and self._chance(conditions.mass_abort):
            self._saw("mass abort")
            for request_id in dict.fromkeys(request_id for request_id, _ in streams if self._chance(0.8)):
                self._abort(request_id)
        if self._chance(conditions.corruption):
            block, offset = rng.randrange(settings.num_blocks), rng.randrange(settings.config.block_size)
            self._model.corrupt(block, offset)
            self._saw("bad slot in block", block)
        if self._chance(conditions.clock_jump):
            self._now += rng.choice([-0.5, 0.5, 3600.0])
            self._saw("clock jump")

    def _arrive(self, conditions: Conditions) -> None:
        requests = self._arrivals.random_requests(conditions, self._now)
        self._saw("arrival" if len(requests) == 1 else "n > 1", requests[0].request_id)
        self._core.add(requests)
        for request in requests:
            text = FakeText() if self._chance(conditions.late_text) else None
            if text is not None:
                self._core._outputs._texts[request] = text  # type: ignore[assignment]
            self._clients.expect(request, text)

    def _abort(self, request_id: str) -> None:
        self._saw("abort in flight" if self._core.scheduler.num_steps_in_flight else "abort", request_id)
        self._clients.aborted(request_id)
        self._clients.receive(self._core.abort(request_id), self._now)

    def _random_faults(self, batch: Batch, conditions: Conditions) -> Faults:
        rng, faults = self._rng, Faults()
        if batch.rows and self._chance(conditions.culprit):
            self._saw("culprit")
            faults.culprits.add(rng.choice(batch.rows).request)
        if batch.rows and self._chance(conditions.not_finite):
            self._saw("not finite")
            faults.not_finite.add(rng.choice(batch.rows).request)
        if batch.rows and self._chance(conditions.raises):
            self._saw("pass raises")
            faults.raises = rng.choice([1, 1, 2, 1000])
        return faults

    def _chance(self, probability: float) -> bool:
        return probability > 0 and self._rng.random() < probability

    # Reports.

    def _saw(self, what: str, *which: object) -> None:
        self._seen[what] += 1
        self._events.append((self.num_steps, what, *which))

    def _count(self, batch: Batch) -> None:
        moves, seen = batch.moves, self._seen
        seen["rows"] += len(batch.rows)
        seen["drafts"] += sum(row.num_drafts > 0 for row in batch.rows)
        seen["swapped out"] += len(moves.swap_out)
        seen["swapped in"] += len(moves.swap_in)
        seen["copied"] += len(moves.copies)
        begun = (row.request for row in batch.rows if row.start == row.request.num_cached_tokens)
        seen["prefix hit"] += sum(request.num_cached_tokens > 0 for request in begun)

    def _story(self, exc: Exception, num_steps: int) -> str:
        events = "\n".join(f"  step {step}: {' '.join(map(str, rest))}" for step, *rest in self._events)
        return (
            f"seed {self._seed}, step {self.num_steps}: {type(exc).__name__}: {exc}\n  {self.settings}\n{events}\n"
            f"again: SPLITFUSE_TEST_SEEDS={self._seed}-{self._seed} SPLITFUSE_TEST_STEPS={num_steps} "
            f"python -m pytest tests/engine/behaviour/{self.test}::test_no_rule_is_broken"
        )
