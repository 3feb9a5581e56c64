"""StepCounter: makes the StepStats of each step, the figures for metrics, logs and pictures."""

from collections.abc import Sequence

from .batch import Batch, Progress
from .outputs import OutputDelta, StepStats
from .ports import Drafted
from .scheduler import Scheduler


class StepCounter:
    """Counts over the steps of one scheduler. Remembers the preemptions that earlier steps have counted."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._num_preemptions = dict(scheduler.num_preemptions_by_mode)

    def stats(
        self,
        batch: Batch,
        progress: Sequence[Progress],
        deltas: Sequence[OutputDelta],
        drafted: Sequence[Drafted],
        *,
        start: float,
        now: float,
    ) -> StepStats:
        """Return the figures of a step that has been applied."""
        scheduler, device = self._scheduler, self._scheduler.blocks.device
        preempted = self._new_preemptions()
        num_decode_tokens = batch.num_decode_tokens
        interactive = [item for item in progress if not item.request.is_background]
        return StepStats(
            step=batch.step,
            time=now,
            duration=now - start,
            num_prefill_tokens=batch.num_tokens - num_decode_tokens,
            num_decode_tokens=num_decode_tokens,
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_used_blocks=device.num_used_blocks,
            num_blocks=device.num_blocks,
            num_preempted=sum(preempted.values()),
            num_swapped_out=preempted["swap"],
            num_output_tokens=sum([len(delta.token_ids) for delta in deltas]),
            num_drafts=len(drafted),
            num_draft_tokens=sum(outcome.num_drafted for outcome in drafted),
            num_accepted_tokens_per_pos=accepted_per_position(drafted),
            ttfts=tuple(
                [now - item.request.arrival_time for item in interactive if item.gap is None and item.output.token_ids]
            ),
            itls=tuple([item.gap for item in interactive if item.gap is not None]),
        )

    def _new_preemptions(self) -> dict[str, int]:
        counts, before = self._scheduler.num_preemptions_by_mode, self._num_preemptions
        self._num_preemptions = dict(counts)
        return {mode: count - before[mode] for mode, count in counts.items()}


def accepted_per_position(outcomes: Sequence[Drafted]) -> tuple[int, ...]:
    """Count the drafts whose first token was accepted, whose second, and so on."""
    longest = max((outcome.num_accepted for outcome in outcomes), default=0)
    return tuple(sum(outcome.num_accepted > position for outcome in outcomes) for position in range(longest))
