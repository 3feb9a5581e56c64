"""HybridScheduler: scheduler of a model with recurrent layers. Its rows have state slots from the block manager."""

from collections.abc import Mapping, Sequence
from typing import Any

from ...core.batch import Batch, BatchRow, Progress, RowOutput
from ...core.block_manager import CacheSpec
from ...core.plan import Plan
from ...core.ports import SchedulerConfig
from ...core.request import Request, Status
from ...core.scheduler import Scheduler
from ...core.state_places import StateSpec
from .block_manager import HybridBlockManager


class HybridScheduler(Scheduler):
    """Scheduler over a HybridBlockManager."""

    blocks: HybridBlockManager

    def __init__(
        self,
        config: SchedulerConfig,
        cache: CacheSpec,
        states: StateSpec,
        *,
        blocks: HybridBlockManager | None = None,
        **options: Any,
    ) -> None:
        """Create blocks and slots of these numbers, unless there are some; `options` are Scheduler's."""
        caching, weights = config.enable_prefix_caching, config.tenant_weights
        if blocks is None:
            blocks = HybridBlockManager(cache, states, prefix_caching=caching, tenant_weights=weights)
        super().__init__(config, blocks, **options)
        self._max_drafts = states.max_drafts
        self.costs.blocks_per_state = states.slot_blocks

    def schedule(self, now: float, *, drafts: Mapping[Request, int] | None = None, **options: Any) -> Batch | None:
        """Like Scheduler.schedule, with at most as many drafts as a slot has room for."""
        most = self._max_drafts
        drafts = {request: min(num, most) for request, num in drafts.items()} if drafts and most else {}
        return super().schedule(now, drafts=drafts, **options)

    def _rows(self, plan: Plan) -> list[BatchRow]:
        return self.blocks.place(super()._rows(plan))

    def update(self, batch: Batch, outputs: Sequence[RowOutput], now: float) -> list[Progress]:
        # What is computed for a request that has ended before is not remembered, neither its blocks nor its states.
        pairs = list(zip(batch.rows, outputs, strict=True))
        good = [output.failure is None and row.request.status is not Status.FINISHED for row, output in pairs]
        progress = super().update(batch, outputs, now)
        for row, is_good in zip(batch.rows, good, strict=True):
            self.blocks.end_row(row, is_good=is_good)
        return progress
