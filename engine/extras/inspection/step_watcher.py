"""StepWatcher: a record of each step, made while someone looks. Plain JSON values; requests are numbers.

    step, start, end    its number, and when it was decided and had results, in the engine's seconds
    budget              most tokens that it could have; tokens are those of chunks and decodes together
    chunks              [[request, first token, tokens], …] of prompts, or computed again
    decodes             [request, …] with one token each, and drafts
    drafts              [[request, drafted, accepted], …]
    forced              [request, …] that their grammar leads to an end before their tokens run out
    admitted            [[request, tokens that need not be computed], …]
    preempted           [[request, "swap" | "recompute", price to swap, price to recompute], …]; null: not known yet
    stopped_at          [[request, why, blocks that it lacked], …]: where admission stopped: `core/plan.py`
    left_out            [request, …] that run and were not in the step
    running, waiting, swapped    requests
    blocks              [in use, on the host]
    evicted             cached blocks that were given other contents since the record before

Keys that are empty are left out.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

from ...core.batch import Batch, Progress, RowOutput
from ...core.plan import Plan
from ...core.ports import Decision, SchedulerState
from ...core.request import Request
from ...core.scheduler import Scheduler

MAX_STEPS = 2000  # that wait to be taken
Record = dict[str, Any]


class StepWatcher:
    """A SchedulerListener. What it has gathered is taken with `take`."""

    def __init__(self, scheduler: Scheduler, *, max_num_batched_tokens: int) -> None:
        self._scheduler = scheduler
        self._max_num_batched_tokens = max_num_batched_tokens
        self._pending: dict[int, Record] = {}  # by step: in flight
        self._steps: deque[Record] = deque(maxlen=MAX_STEPS)
        self._requests: list[Request] = []
        self._ended: list[tuple[int, str, float]] = []
        self._num_evictions = scheduler.blocks.device.num_evictions

    def take(self) -> tuple[list[Request], list[Record], list[tuple[int, str, float]]]:
        """Requests that came, steps that have ended, and requests that have ended as (number, reason, time)."""
        taken = self._requests, list(self._steps), self._ended
        self._requests, self._ended = [], []
        self._steps.clear()
        return taken

    def added(self, request: Request) -> None:
        """A request that has just been queued."""
        self._requests.append(request)

    def finished(self, request: Request, *, reason: str, now: float, at_text: bool = False) -> None:
        """A request that is about to be ended from outside."""
        self._ended.append((request.arrival_order, reason, now))

    def scheduled(self, scheduler: SchedulerState, decision: Decision) -> None:
        """A step that was decided."""
        if (batch := decision.batch) is None:
            return
        plan = decision.plan
        device, host = scheduler.blocks.device, scheduler.blocks.host
        most = self._max_num_batched_tokens
        chunks, decodes = [], []
        for request, start, num_tokens, _, num_drafts, _ in batch.rows:
            # row.is_decode, written out: 17 us of a step of 64 rows become 8.
            if num_tokens == 1 + num_drafts and start >= request.num_prompt_tokens:
                decodes.append(request.arrival_order)
            else:
                chunks.append([request.arrival_order, start, num_tokens])
        record = {
            "step": batch.step,
            "start": decision.now,
            "budget": min(decision.budget or most, most),
            "chunks": chunks,
            "decodes": decodes,
            "admitted": [[each.arrival_order, prefix.num_tokens] for each, prefix in plan.admitted.items()],
            "preempted": [
                [each.arrival_order, "swap" if is_swapped else "recompute", *plan.prices[each]]
                for each, is_swapped in plan.preempted.items()
            ],
            "stopped_at": [[stop.request.arrival_order, stop.reason, stop.num_missing] for stop in plan.stops],
            "left_out": self._left_out(plan),
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "swapped": sum(bool(each.host_block_table) for each in scheduler.waiting) if host else 0,
            "blocks": [device.num_used_blocks, host.num_used_blocks if host else 0],
            "evicted": device.num_evictions - self._num_evictions,
        }
        self._num_evictions = device.num_evictions
        self._pending[batch.step] = {key: value for key, value in record.items() if value or key in ("step", "start")}

    def updated(self, batch: Batch, outputs: Sequence[RowOutput], progress: Sequence[Progress], *, now: float) -> None:
        """Its results have been applied."""
        record = self._pending.pop(batch.step, None)
        if record is not None:  # else it was decided before anyone looked
            self._steps.append(record | {"end": now} | _results(batch, outputs))
        self._ended += [
            (item.request.arrival_order, item.request.finish_reason, now)
            for item in progress
            if item.request.finish_reason is not None
        ]

    def _left_out(self, plan: Plan) -> list[int]:
        running = self._scheduler.running
        if len(plan.num_tokens) == len(running):
            return []
        return [each.arrival_order for each in running if each not in plan.num_tokens]


def _results(batch: Batch, outputs: Sequence[RowOutput]) -> Record:
    """What came of drafts and grammars."""
    rows = zip(batch.rows, outputs, strict=True)
    special = [
        (row.request.arrival_order, each) for row, each in rows if each.num_drafts or each.forced_from is not None
    ]
    drafts = [[number, each.num_drafts, max(0, len(each.token_ids) - 1)] for number, each in special if each.num_drafts]
    forced = [number for number, each in special if each.forced_from is not None]
    return {key: value for key, value in (("drafts", drafts), ("forced", forced)) if value}
