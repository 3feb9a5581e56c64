"""Recorder: the calls of a scheduler and their decisions, as JSON lines in the order of the calls.

    {"splitfuse": "recording", "format": 2, "config": {…}, "num_blocks": …}  the first line
    {"add": 0, "id": "…", "prompt": 150, "max": 214, "time": …}                          a request; numbered from 0
    {"step": 0, "start": …, "rows": [[0, 0, 150]], "admitted": [0], "blocks": 10, …}     rows: request, start, tokens
    {"done": 0, "end": …, "tokens": [17]}                                                a step's results and time;
                                                         with drafts "runs": [[row, number of tokens]]
    {"finish": 0, "reason": "abort", "time": …}                                          a request ended from outside

Empty keys are left out; readers ignore unknown keys and lines. With prefix caching the token ids decide which blocks
are shared, so they are recorded: such a file holds the text of users. Only sampling parameters that affect decisions
are recorded: "min" for min_tokens. "known": number of the last prompt tokens that are output, in a request
that another process began. "stopped_at": where admission stopped and why (`AdmissionBlock` in core/plan.py).
"""

import contextlib
import json
import logging
import os
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from ...config import EngineConfig
from ...config.setting import settings_of
from ...core.batch import Batch, Progress, RowOutput
from ...core.block_manager import CacheSpec
from ...core.plan import Pace
from ...core.ports import Decision, SchedulerListener, SchedulerState
from ...core.request import Request, Status
from ...execution.models.state_slots import StateSpec
from ...private_file import create_private
from ...serving.engine_part import Assembly, EnginePart
from . import RecordSettings

_log = logging.getLogger("splitfuse.engine")

FORMAT = 2
_FLUSH_S = 1.0  # the scheduler's last seconds that may be lost if the process is killed
_NUM_ID_CHARS = 8  # enough to find a request in a log, too few to fetch its result
# Settings that a scheduler's decisions depend on, in addition to the sizes of its pools.
DECIDING_FIELDS = tuple(name for name, setting in settings_of(EngineConfig).items() if setting.decides)


def decided(scheduler: SchedulerState, batch: Batch | None, ran_before: Sequence[Request]) -> dict[str, Any]:
    """Return the decision of a call of `schedule`, which recording and replay compare."""
    if batch is None:
        return {}
    before = set(ran_before)
    preempted = sorted(request.arrival_order for request in before if request.status is Status.PREEMPTED)
    num_moves = [len(pairs) for pairs in batch.moves[:3]]
    if (beside := batch.moves.beside) is not None:  # without them as in recordings from before there were any
        num_moves += [len(beside.swap_out), len(beside.swap_in)]
    decision = {
        "rows": [[row.request.arrival_order, row.start, row.num_tokens] for row in batch.rows],
        "admitted": [request.arrival_order for request in scheduler.running if request not in before],
        "preempted": preempted,
        "moves": num_moves if any(num_moves) else [],
        "blocks": scheduler.blocks.device.num_used_blocks,
        "running": len(scheduler.running),
        "waiting": len(scheduler.waiting),
    }
    return {key: value for key, value in decision.items() if value}


def outcome(batch: Batch) -> dict[str, Any]:
    """Return the requests of a step that have ended once the step has been updated."""
    finished = [row.request.arrival_order for row in batch.rows if row.request.is_finished]
    return {"finished": finished} if finished else {}


def _is_ended_by_token(request: Request) -> bool:
    return request.finish_reason == "stop" or (
        request.finish_reason == "length" and request.num_tokens < request.max_num_tokens
    )


class Recording(EnginePart):
    """Part of an engine: its recorder."""

    def listener(self, listener: SchedulerListener | None, assembly: Assembly) -> SchedulerListener:
        loaded = self.model.runner.loaded
        return Recorder.open(assembly.config, loaded.cache, assembly.max_steps_in_flight, loaded.states)


class Recorder(SchedulerListener):
    """SchedulerListener that writes the lines, and closes the stream when it is freed.

    An error of writing, such as a full disk, ends the recording and nothing else.
    """

    def __init__(
        self,
        stream: TextIO,
        config: EngineConfig,
        cache: CacheSpec,
        max_steps_in_flight: int = 1,
        states: StateSpec | None = None,
    ) -> None:
        self._stream = stream
        self._is_failed = False
        weakref.finalize(self, _close, stream)
        self._has_token_ids = config.enable_prefix_caching
        # A tenant's name may be a key, which no file should hold: tenants get numbers, weighted tenants first.
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
            num_blocks=cache.num_blocks,
            num_host_blocks=cache.num_host_blocks,
            steps_in_flight=max_steps_in_flight,
            **({} if states is None else {"states": states._asdict()}),
        )

    @classmethod
    def open(
        cls, config: EngineConfig, cache: CacheSpec, max_steps_in_flight: int = 1, states: StateSpec | None = None
    ) -> "Recorder":
        """Open a recorder to the file `config.record`. Raises ConfigError if it cannot be written."""
        path = config.section(RecordSettings).record
        assert path is not None
        descriptor = create_private(Path(path), setting="--record")
        stream = os.fdopen(descriptor, "w", encoding="utf-8")  # the recorder closes it
        return cls(stream, config, cache, max_steps_in_flight, states)

    def _write(self, **line: Any) -> None:
        if self._is_failed:
            return
        try:
            self._stream.write(json.dumps(line, separators=(",", ":")) + "\n")
            if (now := line.get("end", self._flushed)) - self._flushed > _FLUSH_S:
                self._stream.flush()
                self._flushed = now
        except OSError as exc:
            self._is_failed = True
            _log.error("--record has stopped, the file cannot be written (%s); requests go on", exc.strerror)

    def added(self, request: Request) -> None:
        """Write a request that has just been queued."""
        more = {
            "index": request.index,
            "priority": request.params.priority,
            "background": request.is_background,
            "tenant": self._tenants.setdefault(request.tenant, len(self._tenants)),
            "prompt_logprobs": request.needs_prompt_logprobs,
            "min": request.params.min_tokens,
            "known": request.num_output_tokens,
        }
        parent = {} if request.parent is None else {"parent": request.parent.arrival_order}
        self._write(
            add=request.arrival_order,
            id=request.request_id[:_NUM_ID_CHARS],
            time=request.arrival_time,
            prompt=request.token_ids if self._has_token_ids else request.num_tokens,
            max=request.max_num_tokens,
            **{key: value for key, value in more.items() if value},
            **parent,
        )

    def finished(self, request: Request, *, reason: str, now: float, at_text: bool = False) -> None:
        """Write a request that is about to be ended from outside."""
        more = {"at_text": True} if at_text else {}
        self._write(finish=request.arrival_order, reason=reason, time=now, **more)

    def scheduled(self, scheduler: SchedulerState, decision: Decision) -> None:
        """Write a decision and its inputs: a budget, drafts, the costs of preemption."""
        batch, plan = decision.batch, decision.plan
        context = _pace_fields(decision.pace)
        if decision.drafts:
            context["drafts"] = [[request.arrival_order, count] for request, count in decision.drafts.items()]
        if batch is not None and batch.needs_host:
            context["needs_host"] = True
        if scheduler.blocks.host is not None:
            costs = {name: value for name, value in vars(scheduler.costs).items() if not name.startswith("_")}
            if costs != self._costs:
                context["costs"] = self._costs = costs
        if plan.stops:
            context["stopped_at"] = [[stop.request.arrival_order, stop.reason, stop.num_missing] for stop in plan.stops]
        decision_fields = decided(scheduler, batch, decision.was_running)
        self._write(step=None if batch is None else batch.step, start=decision.now, **context, **decision_fields)

    def updated(self, batch: Batch, outputs: Sequence[RowOutput], progress: Sequence[Progress], *, now: float) -> None:
        """Write the results of a step after they have been applied; `progress` is their effect on requests."""
        rows = list(zip(batch.rows, outputs, strict=True))
        kept_ids = {item.request: item.output.token_ids for item in progress}
        token_ids = [kept_ids.get(row.request, output.token_ids) for row, output in rows]
        more: dict[str, list[Any]] = {
            "failed": [i for i, (_, output) in enumerate(rows) if output.failure is not None],
            "nothing": [i for i, (row, output) in enumerate(rows) if row.needs_sampling and _is_nothing(output)],
            "pooled": [i for i, (_, output) in enumerate(rows) if output.finish_reason and not output.token_ids],
            # Rows that their last token ended; a late stop string has a `finish` line of its own.
            "stops": [
                i for i, (row, output) in enumerate(rows) if output.token_ids and _is_ended_by_token(row.request)
            ],
            "runs": [[i, len(token_ids[i])] for i, (_, output) in enumerate(rows) if output.num_drafts],
        }
        if self._has_token_ids:
            more["tokens"] = [token_id for ids in token_ids for token_id in ids]
        self._write(done=batch.step, end=now, **{key: value for key, value in more.items() if value}, **outcome(batch))


def _pace_fields(pace: Pace) -> dict[str, Any]:
    fields = pace._asdict() | {"order": [request.arrival_order for request in pace.order] or None}
    return {name: value for name, value in fields.items() if value is not None}


def _close(stream: TextIO) -> None:
    with contextlib.suppress(OSError):  # no space for the buffered rest
        stream.close()


def _is_nothing(output: RowOutput) -> bool:
    return not output.token_ids and output.failure is None and output.finish_reason is None
