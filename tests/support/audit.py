"""Audit: invariants of an engine before, in and after every step."""

from collections.abc import Iterable, Sequence

from beside_core import CORE_ALONE
from clients import Stream
from fairness_audit import FairnessAudit
from fake_model import FakeModel
from goals_audit import GoalsAudit
from memory_audit import MemoryAudit
from schedule_audit import ScheduleAudit
from shares_audit import SharesAudit
from world_settings import WorldSettings

from splitfuse.engine.core.batch import Batch
from splitfuse.engine.core.engine_core import EngineCore
from splitfuse.engine.core.request import Request


class Audit:
    """Audit of all invariants. Raises AssertionError if one does not hold."""

    def __init__(self, core: EngineCore, model: FakeModel, settings: WorldSettings) -> None:
        self._core = core
        self._memory = MemoryAudit(core.blocks, model, tenants=settings.tenants, hash_is_weak=settings.hash_is_weak)
        self._schedule = ScheduleAudit(settings.config, core.scheduler)
        self._shares = SharesAudit(core.blocks, settings.config.tenant_weights)
        is_fair = settings.config.scheduling_policy == "fair" and settings.max_tenants >= len(settings.tenants)
        self.goals = GoalsAudit(core)
        self._fairness = FairnessAudit(settings.config, longest=settings.longest) if is_fair else None

    def before_decision(self) -> None:
        """Record the state before the decision of a step."""
        core, now = self._core, self._core._clock()
        pace = core.pacer.pace(core.scheduler.running, core.scheduler.waiting, now)
        self._schedule.before(pace)
        self.goals.before(pace, now)
        self._shares.before()

    def after_decision(self, batch: Batch | None) -> None:
        """Check the decision of a step."""
        self._schedule.check(batch)
        if not CORE_ALONE:
            self.goals.check(batch)
        self._shares.check()
        if batch is not None:
            self._memory.check_writes(batch)

    def after_results(self, batch: Batch, with_tokens: Iterable[Request], failed: Iterable[Sequence[int]]) -> None:
        """Check an update. `with_tokens`: a request per token; `failed`: block tables of rows without a result."""
        self._memory.check_forgotten(failed)
        if self._fairness is not None:
            self._fairness.served(self._schedule.begins(batch), with_tokens)

    def after_step(self) -> None:
        """Check between two steps."""
        self._memory.check(self._core.scheduler)
        self._core.scheduler.check()
        if not CORE_ALONE:
            self._core.pacer.check()  # type: ignore[attr-defined]
        if self._fairness is not None:
            self._fairness.check(self._core.scheduler.waiting, self._core.scheduler.running)

    def look_up(self, stream: Stream) -> None:
        """Check that the prefix cache finds all cached blocks of this request."""
        self._memory.check_lookup(stream.request, stream.oracle.entries)

    def when_empty(self) -> None:
        """Check that nothing is held when no request is left."""
        self._memory.check_empty()
        assert not self._core.scheduler.has_work
        assert not self._core._requests, "the core keeps requests that have ended"
        assert not self._core._outputs._texts, "the core keeps texts of requests that have ended"


class NoAudit(Audit):
    """Audit that checks nothing: faults must show in the outputs."""

    def before_decision(self) -> None: ...

    def after_decision(self, batch: Batch | None) -> None: ...

    def after_results(self, batch: Batch, with_tokens: Iterable[Request], failed: Iterable[Sequence[int]]) -> None: ...

    def after_step(self) -> None: ...

    def look_up(self, stream: Stream) -> None: ...

    def when_empty(self) -> None: ...
