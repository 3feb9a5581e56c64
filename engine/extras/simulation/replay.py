"""Replay: make the calls of a recording again, to the same scheduler code, which must decide identically.

Also `splitfuse replay`.
"""

import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...config import EngineConfig, ResolvedConfig
from ...core.batch import NO_OUTPUT, Batch, RowFailure, RowOutput
from ...core.block_manager import BlockManager, CacheSpec
from ...core.outputs import KnownOutput
from ...core.plan import Pace
from ...core.request import Request
from ...core.sampling_params import SamplingParams
from ...core.scheduler import Scheduler
from ...errors import ConfigError
from ...execution.models.state_slots import StateSpec
from ...extension import load_extra
from .recording import DECIDING_FIELDS, FORMAT, decided, outcome

Line = Mapping[str, Any]

_STOP = -1  # stands for any token that a request stopped at
_DECISIONS: dict[str, Any] = {
    "rows": [],
    "admitted": [],
    "preempted": [],
    "moves": [],
    "blocks": 0,
    "running": 0,
    "waiting": 0,
    "finished": [],
}


@dataclass(frozen=True, slots=True)
class Replayed:
    """Result of a replay: the number of steps decided alike, and a text of the first difference, if there is one."""

    num_steps: int
    difference: str | None = None


def run(path: Path) -> int:
    """Entry point of `splitfuse replay`: print one line and return 0, or the first difference and 1."""
    replayed = replay(path)
    if replayed.difference is None:
        print(f"{replayed.num_steps} steps replayed, identical")
        return 0
    print(f"{replayed.num_steps} steps replayed, then a difference\n{replayed.difference}")
    return 1


def replay(path: Path) -> Replayed:
    """Make the calls of a recording again. Raises ConfigError if the file is no recording."""
    lines = read_recording(path)
    header = next(lines, (0, {}))[1]
    if header.get("splitfuse") != "recording":
        raise ConfigError(f"{path} is not a recording; `splitfuse serve --record FILE` makes one")
    if (format_number := header.get("format", 0)) != FORMAT:
        way_out = "use a newer splitfuse" if format_number > FORMAT else "record it again"
        raise ConfigError(f"{path} has format {format_number}, this version reads {FORMAT}; {way_out}")
    replay = _Replay(header)
    for number, line in lines:
        try:
            difference = replay.call(line)
        except (KeyError, TypeError, ValueError, IndexError) as exc:
            raise ConfigError(f"{path}, line {number} does not fit what came before: {exc!r}") from exc
        if difference is not None:
            return Replayed(replay.num_steps, f"{path}, line {number}: {difference}")
    return Replayed(replay.num_steps)


def read_recording(path: Path) -> Iterator[tuple[int, Line]]:
    """Yield line numbers from 1 and lines. A last line that was cut off is left out."""
    try:
        with path.open(encoding="utf-8") as stream:
            for number, text in enumerate(stream, 1):
                try:
                    line = json.loads(text)
                except (ValueError, RecursionError) as exc:
                    if not text.endswith("\n"):
                        return
                    raise ConfigError(f"{path}, line {number} is not JSON: {exc}") from exc
                if not isinstance(line, dict):
                    raise ConfigError(f"{path}, line {number} is not a JSON object")
                yield number, line
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path} cannot be read: {exc}") from exc


class _Replay:
    """Scheduler that gets the recorded calls, and its requests."""

    def __init__(self, header: Line) -> None:
        recorded = header.get("config", {})
        wishes = EngineConfig(**{name: recorded[name] for name in DECIDING_FIELDS if name in recorded})
        config = ResolvedConfig.of(wishes, device="cpu")
        cache = CacheSpec(header["num_blocks"], config.block_size, header.get("num_host_blocks", 0))
        companions = []
        if "states" in header:
            hybrid = load_extra("hybrid.request_states", needed_for="a recording of a model with recurrent layers")
            companions = [hybrid.companion(StateSpec(**header["states"]), config.tenant_weights)]
        blocks = BlockManager(
            cache,
            prefix_caching=config.enable_prefix_caching,
            tenant_weights=config.tenant_weights,
            companions=companions,
        )
        self._scheduler = Scheduler(config, blocks, max_steps_in_flight=header.get("steps_in_flight", 1))
        self._requests: dict[int, Request] = {}
        self._in_flight: deque[Batch] = deque()
        self.num_steps = 0

    def call(self, line: Line) -> str | None:
        """Make the call of a line. Return the difference, if there is one."""
        kinds: dict[str, Callable[[Line], str | None]] = {
            "add": self._add,
            "finish": self._finish,
            "step": self._step,
            "done": self._update,
        }
        for kind, do in kinds.items():
            if kind in line:
                return do(line)
        return None  # a later version's line

    def _add(self, line: Line) -> None:
        number, prompt = line["add"], line["prompt"]
        token_ids = prompt if isinstance(prompt, list) else [0] * prompt
        num_prompt_tokens = len(token_ids) - line.get("known", 0)
        request = Request(
            request_id=str(number),
            prompt_token_ids=token_ids[:num_prompt_tokens],
            known=KnownOutput(tuple(token_ids[num_prompt_tokens:])),
            params=SamplingParams(
                priority=line.get("priority", 0),
                is_background=line.get("background", False),
                prompt_logprobs=0 if line.get("prompt_logprobs") else None,
                min_tokens=line.get("min", 0),
            ),
            max_num_tokens=line["max"],
            seed=0,
            index=line.get("index", 0),
            stop_token_ids=frozenset({_STOP}),
            tenant=str(line.get("tenant", 0)),
            parent=self._requests.get(line.get("parent", -1)),
            arrival_time=line.get("time", 0.0),
        )
        self._scheduler.add(request)
        if request.arrival_order != number:
            raise ValueError(f"request {number} comes as number {request.arrival_order}")
        self._requests[number] = request

    def _finish(self, line: Line) -> None:
        request, now = self._requests[line["finish"]], line.get("time", 0.0)
        self._scheduler.finish(request, reason=line["reason"], now=now, stop="" if line.get("at_text") else None)
        if request.is_finished:
            del self._requests[request.arrival_order]

    def _step(self, line: Line) -> str | None:
        scheduler = self._scheduler
        if len(self._in_flight) == scheduler.max_steps_in_flight:
            raise ValueError("the step before has no results")
        for name, value in line.get("costs", {}).items():
            if hasattr(scheduler.costs, name):
                setattr(scheduler.costs, name, value)
        ran_before = list(scheduler.running)
        waited_before = list(scheduler.waiting)
        drafts = {self._requests[number]: count for number, count in line.get("drafts", ())}
        batch = scheduler.schedule(
            line["start"], pace=self._pace(line), drafts=drafts, needs_host=line.get("needs_host", False)
        )
        difference = _difference(line, decided(scheduler, batch, ran_before))
        if difference is None:
            if batch is not None:
                self.num_steps += 1
                self._in_flight.append(batch)
            return None
        return "\n".join([f"step {line['step']} at {line['start']} s", difference, _context(ran_before, waited_before)])

    def _pace(self, line: Line) -> Pace:
        order = [self._requests[number] for number in line.get("order", ())]
        return Pace(line.get("budget"), line.get("background_budget"), order)

    def _update(self, line: Line) -> str | None:
        batch = self._in_flight.popleft()
        self._scheduler.update(batch, list(_outputs(batch, line)), line["end"])
        ended = outcome(batch)
        for number in ended.get("finished", ()):
            self._requests.pop(number, None)
        difference = _difference(line, ended)
        return None if difference is None else f"results of step {line['done']}\n{difference}"


def _outputs(batch: Batch, line: Line) -> Iterator[RowOutput]:
    failed, nothing, stops, pooled = (set(line.get(key, ())) for key in ("failed", "nothing", "stops", "pooled"))
    tokens = iter(line.get("tokens", ()))
    runs = dict(line.get("runs", ()))
    for index, row in enumerate(batch.rows):
        if index in failed:
            yield RowOutput(failure=RowFailure("as recorded"))
        elif index in pooled:
            yield RowOutput(finish_reason="stop")
        elif not row.needs_sampling or index in nothing:
            yield NO_OUTPUT
        else:
            token_ids = [next(tokens, 0) for _ in range(runs.get(index, 1))]
            if index in stops:
                token_ids[-1] = _STOP
            yield RowOutput(tuple(token_ids), num_drafts=row.num_drafts if index in runs else 0)


def _difference(recorded: Line, replayed: Line) -> str | None:
    for key, nothing in _DECISIONS.items():
        was, now = recorded.get(key, nothing), replayed.get(key, nothing)
        if was != now and (key in recorded or key in replayed):
            return f"  {key} recorded: {_short_text(was)}\n  {key} replayed: {_short_text(now)}"
    return None


def _context(running: Iterable[Request], waiting: Iterable[Request]) -> str:
    return "\n".join(
        f"  {name} before: "
        + _short_text([f"{r.arrival_order}: {r.num_computed_tokens}/{r.num_tokens}" for r in requests])
        for name, requests in (("running", running), ("waiting", waiting))
    )


def _short_text(value: Any) -> str:
    if not isinstance(value, list) or len(value) <= 12:
        return str(value)
    return f"{str(value[:12])[:-1]}, … {len(value)} in all]"
