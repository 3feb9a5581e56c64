"""HybridScheduler: scheduler of a model with recurrent layers. Its rows have state slots from the block manager."""

from collections.abc import Sequence

from ...core.batch import Batch, BatchRow, Progress, RowOutput
from ...core.plan import Plan
from ...core.request import Status
from ...core.scheduler import Scheduler
from .block_manager import HybridBlockManager


class HybridScheduler(Scheduler):
    """Scheduler over a HybridBlockManager."""

    blocks: HybridBlockManager

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
