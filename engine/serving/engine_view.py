"""EngineView: looks into a running engine: figures, requests, blocks, a record of each step. Changes no decision."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from ..core.outputs import RequestMetrics, StepStats
from ..core.ports import SchedulerListener
from ..core.request import Request
from ..core.scheduler import Scheduler
from ..core.step_pipeline import StepPipeline
from .guarded_hook import guarded
from .wait_prediction import WaitPrediction


class EngineView:
    """View of one pipeline and its core."""

    def __init__(self, pipeline: StepPipeline) -> None:
        self._core, self._launcher = pipeline.core, pipeline.launcher

    def stats(self, steps: Sequence[StepStats]) -> dict[str, Any]:
        """Return figures for JSON: queue, blocks, the last steps and the rate over them."""
        core, scheduler, allocator = self._core, self._core.scheduler, self._core.blocks.device
        return {
            "num_running": len(scheduler.running),
            "num_waiting": len(scheduler.waiting),
            "num_swapped": sum(bool(request.host_block_table) for request in scheduler.waiting),
            "scheduling_policy": self._core.config.scheduling_policy,
            "num_preemptions": scheduler.num_preemptions,
            "prefix_cache_queries": core.blocks.num_prefix_queries,
            "prefix_cache_hits": core.blocks.num_prefix_hits,
            "num_blocks": allocator.num_blocks,
            "num_used_blocks": allocator.num_used_blocks,
            "num_free_blocks": allocator.num_free_blocks,
            "block_size": allocator.block_size,
            "tokens_per_s": _tokens_per_s(steps),
            "predicted_wait_s": WaitPrediction(core).predicted_wait_s(),
            "speculation": core.speculation.to_dict(),
            "cost_model": core.cost_model.to_dict(),
            **core.pacer.stats(),
            **({} if self._launcher is None else self._launcher.stats()),
            "steps": [step.to_dict() for step in steps],
        }

    @property
    def hooks(self) -> list[object]:
        """Hooks that advise the steps or record them."""
        core, scheduler = self._core, self._core.scheduler
        return [core.pacer, core.speculation, core.cost_model, scheduler.observer, *scheduler.listeners]

    @property
    def scheduler(self) -> Scheduler:
        """Scheduler that runs, for extensions that look at its blocks."""
        return self._core.scheduler

    def listen(self, listener: SchedulerListener) -> Callable[[], None]:
        """Let a listener receive each change of the scheduler from now on. Return the call that ends it."""
        listener, listeners = guarded(listener, SchedulerListener()), self._core.scheduler.listeners
        listeners.append(listener)
        return partial(listeners.remove, listener)

    def current_requests(self) -> list[Request]:
        """Return the outputs that have not ended."""
        return [*self._core.scheduler.running, *self._core.scheduler.waiting]

    def counts_of(self, tenant: str) -> dict[str, int]:
        """Return the numbers of a tenant's running and waiting outputs, under their names in `stats`."""
        scheduler = self._core.scheduler
        lists = {"num_running": scheduler.running, "num_waiting": scheduler.waiting}
        return {name: sum(request.tenant == tenant for request in requests) for name, requests in lists.items()}

    def metrics(self, request_id: str) -> dict[int, RequestMetrics]:
        """Return the metrics and histories so far of a request's unfinished outputs, by index."""
        return self._core.metrics(request_id)


def _tokens_per_s(steps: Sequence[StepStats]) -> float:
    """Return output tokens per second over these steps; 0 if the last one is over a second old."""
    if len(steps) < 2 or time.monotonic() - steps[-1].time > 1.0:
        return 0.0
    num_tokens = sum(step.num_output_tokens for step in steps)
    return num_tokens / (steps[-1].time - steps[0].time + steps[0].duration)
