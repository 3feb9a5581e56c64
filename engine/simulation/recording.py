"""Record: what a scheduler was told and what it decided, as JSON lines in the order of the calls.

    {"splitfuse": "recording", "format": 1, "config": {…}, "num_blocks": …}              the first line
    {"add": 0, "id": "…", "prompt": 150, "max": 214, "time": …}                          a request; numbered from 0
    {"step": 0, "start": …, "rows": [[0, 0, 150]], "admitted": [0], "blocks": 10, …}     rows: request, start, tokens
    {"done": 0, "end": …, "tokens": [17]}                                                its results and their time;
                                                         with drafts "runs": [[row, number of tokens]] that came of them
    {"finish": 0, "reason": "abort", "time": …}                                          from outside

Keys that are empty are left out; readers ignore keys and lines that they do not know. With prefix caching the token ids
decide what is shared, so then they are recorded: such a file holds what users wrote.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, TextIO

from ..batch import Batch, RowFailure, RowResult, SampledRun, SampledToken
from ..config import EngineConfig
from ..config.setting import settings_of
from ..request import Request, Status
from ..scheduler.block_manager import BlockManager
from ..scheduler.scheduler import Progress, Scheduler

FORMAT = 1
_FLUSH_S = 1.0  # so much of the scheduler's time may be lost if the process is killed
_NUM_ID_CHARS = 8  # enough to find it in a log, too few to fetch its result
# The settings on which a scheduler's decisions depend, beside the sizes of its pools.
DECIDING_FIELDS = tuple(name for name, setting in settings_of(EngineConfig).items() if setting.decides)


def make_scheduler(config: EngineConfig, *, num_blocks: int, num_host_blocks: int = 0) -> Scheduler:
    """A scheduler over pools of so many blocks, without a model."""
    return Scheduler(config, make_blocks(config, num_blocks=num_blocks, num_host_blocks=num_host_blocks))


def make_blocks(config: EngineConfig, *, num_blocks: int, num_host_blocks: int = 0) -> BlockManager:
    """Pools of so many blocks on the device and on the host."""
    return BlockManager(
        num_blocks=num_blocks,
        block_size=config.block_size,
        num_host_blocks=num_host_blocks,
        prefix_caching=config.enable_prefix_caching,
    )


def decision(scheduler: Scheduler, batch: Batch | None, ran_before: Sequence[Request]) -> dict[str, Any]:
    """What a call of `schedule` decided; recording and replay compare it."""
    if batch is None:
        return {}
    before = set(ran_before)
    preempted = sorted(request.arrival_order for request in before if request.status is Status.PREEMPTED)
    made = {
        "rows": [[row.request.arrival_order, row.start, row.num_tokens] for row in batch.rows],
        "admitted": [request.arrival_order for request in scheduler.running if request not in before],
        "preempted": preempted,
        "moves": list(map(len, batch.moves)) if any(batch.moves) else [],
        "blocks": scheduler._blocks.device.num_used_blocks,
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
    }
    return {key: value for key, value in made.items() if value}


def outcome(batch: Batch) -> dict[str, Any]:
    """Who ended with a step that has been booked."""
    finished = [row.request.arrival_order for row in batch.rows if row.request.is_finished]
    return {"finished": finished} if finished else {}


def _is_ended_by_token(request: Request) -> bool:
    return request.finish_reason == "stop" or (
        request.finish_reason == "length" and request.num_tokens < request.max_num_tokens
    )


class Recorder:
    """Writes the lines. Knows which words stand for what, not when to say them."""

    def __init__(self, stream: TextIO, *, config: EngineConfig, blocks: BlockManager) -> None:
        self._stream = stream
        self._has_token_ids = config.enable_prefix_caching
        # A tenant may be named by a key, which no file should hold: tenants are numbers, those with a weight first.
        weights = config.tenant_weights or {}
        self._tenants = {tenant: number for number, tenant in enumerate(weights)}
        deciding = {name: getattr(config, name) for name in DECIDING_FIELDS}
        deciding["tenant_weights"] = {str(self._tenants[tenant]): weights[tenant] for tenant in weights} or None
        self._costs: dict[str, Any] = {}
        self._flushed = float("-inf")
        self._write(
            splitfuse="recording",
            format=FORMAT,
            config=deciding,
            num_blocks=blocks.device.num_blocks,
            num_host_blocks=0 if blocks.host is None else blocks.host.num_blocks,
        )

    def _write(self, **line: Any) -> None:
        self._stream.write(json.dumps(line, separators=(",", ":")) + "\n")

    def add(self, request: Request) -> None:
        """A request that has just been queued."""
        more = {
            "index": request.index,
            "priority": request.params.priority,
            "tenant": self._tenants.setdefault(request.tenant, len(self._tenants)),
            "scored": request.is_scored,
        }
        leader = {} if request.leader is None else {"leader": request.leader.arrival_order}
        self._write(
            add=request.arrival_order,
            id=request.request_id[:_NUM_ID_CHARS],
            time=request.arrival_time,
            prompt=request.token_ids if self._has_token_ids else request.num_prompt_tokens,
            max=request.max_num_tokens,
            **{key: value for key, value in more.items() if value},
            **leader,
        )

    def finish(self, request: Request, *, reason: str, now: float, at_text: bool = False) -> None:
        """A request that somebody ends."""
        more = {"at_text": True} if at_text else {}
        self._write(finish=request.arrival_order, reason=reason, time=now, **more)

    def step(self, batch: Batch | None, made: dict[str, Any], told: dict[str, Any], *, now: float) -> None:
        """A decision, and what the scheduler was told for it: a budget, what preemption costs."""
        if told.get("costs") == self._costs:
            told = {key: value for key, value in told.items() if key != "costs"}
        self._costs = told.get("costs", self._costs)
        self._write(step=None if batch is None else batch.step, start=now, **told, **made)

    def done(self, batch: Batch, results: Sequence[RowResult], progress: Sequence[Progress], *, now: float) -> None:
        """The results of a step, after they have been booked; `progress` is what was made of them."""
        rows = list(zip(batch.rows, results, strict=True))
        taken = {item.request: item.sampled for item in progress}
        drawn = [taken[row.request] if isinstance(result, SampledRun) else (result,) for row, result in rows]
        more: dict[str, list[Any]] = {
            "failed": [i for i, (_, result) in enumerate(rows) if isinstance(result, RowFailure)],
            "nothing": [i for i, (row, result) in enumerate(rows) if result is None and row.samples],
            # Ended by its last token: one that came with a late stop string is told by `finish`.
            "stops": [i for i, (row, result) in enumerate(rows) if result and _is_ended_by_token(row.request)],
            "runs": [[i, len(drawn[i])] for i, (_, result) in enumerate(rows) if isinstance(result, SampledRun)],
        }
        if self._has_token_ids:
            more["tokens"] = [token.token_id for tokens in drawn for token in tokens if isinstance(token, SampledToken)]
        self._write(done=batch.step, end=now, **{key: value for key, value in more.items() if value}, **outcome(batch))
        if now - self._flushed > _FLUSH_S:
            self._stream.flush()
            self._flushed = now


class RecordingScheduler(Scheduler):
    """A scheduler that has every call from outside written down."""

    def __init__(self, config: EngineConfig, blocks: BlockManager, stream: TextIO) -> None:
        super().__init__(config, blocks)
        self._recorder = Recorder(stream, config=config, blocks=blocks)
        self._is_inside = False  # what it tells itself within a call follows from that call

    def add(self, request: Request) -> None:
        """Queue a request."""
        super().add(request)
        self._recorder.add(request)

    def finish(self, request: Request, *, reason: str, now: float, stop_reason: int | str | None = None) -> bool:
        """End a request; see Scheduler."""
        if not self._is_inside and not request.is_finished:
            self._recorder.finish(request, reason=reason, now=now)
        return super().finish(request, reason=reason, now=now, stop_reason=stop_reason)

    def stop_at_text(self, request: Request, *, stop: str, now: float) -> None:
        """End a request whose text met a stop string; see Scheduler."""
        if not request.is_finished:
            self._recorder.finish(request, reason="stop", now=now, at_text=True)
        self._is_inside = True
        super().stop_at_text(request, stop=stop, now=now)
        self._is_inside = False

    def expire(self, now: float) -> list[Request]:
        """End requests whose time is over; recorded as ended from outside."""
        self._is_inside = True
        ended = super().expire(now)
        self._is_inside = False
        for request in ended:
            self._recorder.finish(request, reason="timeout", now=now)
        return ended

    def schedule(
        self, now: float, *, budget: int | None = None, drafts: Mapping[Request, int] | None = None
    ) -> Batch | None:
        """Decide and apply one step."""
        ran_before = list(self.running)
        told: dict[str, Any] = {} if budget is None else {"budget": budget}
        if drafts:
            told["drafts"] = [[request.arrival_order, count] for request, count in drafts.items()]
        if self._blocks.host is not None:
            told["costs"] = {name: value for name, value in vars(self.costs).items() if not name.startswith("_")}
        self._is_inside = True
        batch = super().schedule(now, budget=budget, drafts=drafts)
        self._is_inside = False
        self._recorder.step(batch, decision(self, batch, ran_before), told, now=now)
        return batch

    def update(self, batch: Batch, results: Sequence[RowResult], now: float) -> list[Progress]:
        """Book a step."""
        self._is_inside = True
        progress = super().update(batch, results, now)
        self._is_inside = False
        self._recorder.done(batch, results, progress, now=now)
        return progress
