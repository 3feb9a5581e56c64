"""Restart: requests compute all their tokens again, because the model's weights have changed."""

import time

from ...core.preemption import Prices
from ...core.scheduler import Scheduler

# Prices of a preemption that was no choice.
NO_CHOICE = Prices(0.0, 0.0)


def restart(scheduler: Scheduler) -> None:
    """Preempt all requests by recompute, and empty the prefix cache. No step may be in flight.

    Output tokens stay. Prompt logprobs that were not complete begin again.
    """
    assert not scheduler.num_steps_in_flight, "a step in flight uses the blocks"
    now, blocks = time.monotonic(), scheduler.blocks
    for request in list(scheduler.running):
        scheduler.observer.preempted(request, now, is_swapped=False, prices=NO_CHOICE, gave_way=False)
        scheduler.preempt(request, is_swapped=False)
    for request in scheduler.waiting:
        blocks.release(request)  # it may have blocks on the host
        if not request.num_output_tokens:
            request.num_read_tokens = 0
    if blocks.cache is not None:
        for block in list(blocks.cache.blocks):
            blocks.cache.forget(block)
