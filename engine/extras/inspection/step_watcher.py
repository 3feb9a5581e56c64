"""StepWatcher: a record of each step, kept while there are viewers. Plain JSON values; requests are numbers.

    step, start, end    the step's number, and the engine's seconds of its decision and its results
    budget              most tokens that the step could have; chunks and decodes share them
    chunks              [[request, first token, tokens], …] of prompts, or of tokens computed again
    decodes             [request, …] with one token and its drafts
    drafts              [[request, drafted, accepted], …]
    forced              [request, …] that the grammar leads to an end before the tokens run out
    admitted            [[request, tokens that need not be computed], …]
    preempted           [[request, "swap" | "recompute", price to swap, price to recompute], …]; null: not known yet
    stopped_at          [[request, reason, missing blocks], …]: where admission stopped (core/plan.py)
    left_out            [request, …] that run but were not in the step
    running, waiting, swapped    numbers of requests
    blocks              [in use, on the host]
    evicted             number of cached blocks that got other contents since the last record

Keys that are empty are left out. `block_map` shows the use of each block of the KV cache.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from ...core.batch import Batch, Progress, RowOutput
from ...core.block_manager import BlockManager
from ...core.plan import Plan
from ...core.ports import Decision, SchedulerListener, SchedulerState
from ...core.request import Request
from ...core.scheduler import Scheduler

MAX_STEPS = 2000  # records that wait to be taken
MAX_CELLS = 4096  # every k-th block of a larger cache is shown: 4,096 take 0.5 ms
FREE, CACHED, SHARED = -1, -2, -3
Record = dict[str, Any]


class StepWatcher(SchedulerListener):
    """SchedulerListener that gathers records until `take`."""

    def __init__(self, scheduler: Scheduler, *, max_num_batched_tokens: int) -> None:
        self._scheduler = scheduler
        self._max_num_batched_tokens = max_num_batched_tokens
        self._pending: dict[int, Record] = {}  # step in flight -> its record
        self._steps: deque[Record] = deque(maxlen=MAX_STEPS)
        self._requests: list[Request] = []
        self._ended: list[tuple[int, str, float]] = []
        self._num_evictions = scheduler.blocks.device.num_evictions

    def take(self) -> tuple[list[Request], list[Record], list[tuple[int, str, float]]]:
        """Return and clear the requests that came, steps that ended, and ended requests as (number, reason, time)."""
        result = self._requests, list(self._steps), self._ended
        self._requests, self._ended = [], []
        self._steps.clear()
        return result

    def added(self, request: Request) -> None:
        """Note a request that has just been queued."""
        self._requests.append(request)

    def finished(self, request: Request, *, reason: str, now: float, at_text: bool = False) -> None:
        """Note a request that is about to be ended from outside."""
        self._ended.append((request.arrival_order, reason, now))

    def scheduled(self, scheduler: SchedulerState, decision: Decision) -> None:
        """Begin the record of a step that was decided."""
        if (batch := decision.batch) is None:
            return
        plan = decision.plan
        device, host = scheduler.blocks.device, scheduler.blocks.host
        most = self._max_num_batched_tokens
        chunks, decodes = [], []
        for request, start, num_tokens, _, num_drafts, _, _ in batch.rows:
            # row.is_decode inlined: 8 us instead of 17 in a step of 64 rows.
            if num_tokens == 1 + num_drafts and start >= request.num_prompt_tokens:
                decodes.append(request.arrival_order)
            else:
                chunks.append([request.arrival_order, start, num_tokens])
        record = {
            "step": batch.step,
            "start": decision.now,
            "budget": min(decision.pace.budget or most, most),
            "chunks": chunks,
            "decodes": decodes,
            "admitted": [[request.arrival_order, prefix.num_tokens] for request, prefix in plan.admitted.items()],
            "preempted": [
                [request.arrival_order, "swap" if is_swapped else "recompute", *plan.prices[request]]
                for request, is_swapped in plan.preempted.items()
            ],
            "stopped_at": [[stop.request.arrival_order, stop.reason, stop.num_missing] for stop in plan.stops],
            "left_out": self._left_out(plan),
            "running": len(scheduler.running),
            "waiting": len(scheduler.waiting),
            "swapped": sum(bool(request.host_block_table) for request in scheduler.waiting) if host else 0,
            "blocks": [device.num_used_blocks, host.num_used_blocks if host else 0],
            "evicted": device.num_evictions - self._num_evictions,
        }
        self._num_evictions = device.num_evictions
        self._pending[batch.step] = {key: value for key, value in record.items() if value or key in ("step", "start")}

    def updated(self, batch: Batch, outputs: Sequence[RowOutput], progress: Sequence[Progress], *, now: float) -> None:
        """Complete the record of a step whose results have been applied."""
        record = self._pending.pop(batch.step, None)
        if record is not None:  # None: the step was decided before there was a viewer
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
        return [request.arrival_order for request in running if request not in plan.num_tokens]


def _results(batch: Batch, outputs: Sequence[RowOutput]) -> Record:
    """Return the record's part about drafts and forced completions."""
    rows = zip(batch.rows, outputs, strict=True)
    special = [
        (row.request.arrival_order, output)
        for row, output in rows
        if output.num_drafts or output.forced_from is not None
    ]
    drafts = [
        [number, output.num_drafts, max(0, len(output.token_ids) - 1)]
        for number, output in special
        if output.num_drafts
    ]
    forced = [number for number, output in special if output.forced_from is not None]
    return {key: value for key, value in (("drafts", drafts), ("forced", forced)) if value}


def block_map(blocks: BlockManager, running: Iterable[Request], waiting: Iterable[Request]) -> dict[str, Any]:
    """Return the map. `runs`: [number of cells, use, number of cells, use, …]. A cell shows one of `stride` blocks.

    A use is the number of the request that alone has the block, or FREE, CACHED (free, and found again by its tokens)
    or SHARED. `swapped`: [[request, blocks on the host], …].
    """
    num_blocks = blocks.device.num_blocks
    stride = -(-num_blocks // MAX_CELLS)
    cached = () if blocks.cache is None else blocks.cache.blocks
    cells = [CACHED if block in cached else FREE for block in range(0, num_blocks, stride)]
    for request in running:
        table, number = request.block_table, request.arrival_order
        for index in table if stride == 1 else [block // stride for block in table if not block % stride]:
            cells[index] = number if cells[index] in (FREE, CACHED) else SHARED
    runs = [value for use, run in groupby(cells) for value in (len(list(run)), use)]
    hosted = [request for request in waiting if request.host_block_table]
    swapped = [[request.arrival_order, len(request.host_block_table)] for request in hosted]
    return {"num_blocks": num_blocks, "stride": stride, "runs": runs, "swapped": swapped}
