"""Histories: write the history of each request, from the scheduler's own decisions.

Only requests that wait, catch up or are left out are looked at, so a decode that goes on costs nothing. The obstacle of
the waiting requests is logged once for all of them, and looked up when one of them is admitted.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ...config import EngineConfig
from ...core.plan import AdmissionBlock, Plan
from ...core.policies import Source
from ...core.ports import RequestObserver
from ...core.preemption_costs import Prices
from ...core.request import Request, Status
from ...extension import has_extra, load_extra
from ...serving.engine_part import Assembly, EnginePart
from .history import History, OpenHistory

_MAX_ENTRIES = 512  # a queue of 512 requests advances that often


class Wait(NamedTuple):
    """Wait of a request for `why`. `num_missing` blocks were lacking, if the request was first in the queue."""

    start: float
    end: float
    why: str
    num_missing: int = 0


class _Entry(NamedTuple):
    time: float
    number: int
    arrival_time: float
    reason: str
    num_missing: int


class StopLog:
    """Log of one class of requests (interactive or background). It keeps the last _MAX_ENTRIES changes."""

    def __init__(self, *, is_fair: bool) -> None:
        """Create an empty log. `is_fair`: a later request goes first because its tenant has had less."""
        self._passed = "fairness" if is_fair else "priority"
        self._entries: deque[_Entry] = deque(maxlen=_MAX_ENTRIES)

    def note(self, stop: AdmissionBlock, now: float) -> None:
        """Note that a decision stopped admission here."""
        request, last = stop.request, self._entries[-1] if self._entries else None
        if last is None or (last.number, last.reason) != (request.arrival_order, stop.reason):
            entry = _Entry(now, request.arrival_order, request.arrival_time, stop.reason, stop.num_missing)
            self._entries.append(entry)

    def waits(self, request: Request, start: float, end: float) -> list[Wait]:
        """Return the request's waits in this time, in order, without gaps; adjacent waits of one reason are joined."""
        waits: list[Wait] = []
        for wait in self._backwards(request, start, end):
            if waits and waits[-1].why == wait.why:
                wait = wait._replace(end=waits.pop().end)
            waits.append(wait)
        return waits[::-1]

    def _backwards(self, request: Request, start: float, end: float) -> Iterator[Wait]:
        for entry in reversed(self._entries):
            start_of_wait = max(entry.time, start)
            if start_of_wait < end:
                is_first = entry.number == request.arrival_order
                passed = entry.number > request.arrival_order and entry.reason != "policy"
                why = self._passed if passed else entry.reason
                yield Wait(start_of_wait, end, why, entry.num_missing if is_first else 0)
                end = start_of_wait
            if entry.time <= start:
                return
        if end > start:
            yield Wait(start, end, "unknown")


class Inspection(EnginePart):
    """Part of an engine: the histories of its requests."""

    def observer(self, observer: RequestObserver, assembly: Assembly) -> RequestObserver:
        return Histories.of(assembly.config)


class Histories(RequestObserver):
    """RequestObserver of one scheduler: the writer of `Request.history`."""

    def __init__(self, *, is_fair: bool, goals: Any = None) -> None:
        """`goals`: the GoalTable of the extra, if it is installed."""
        self._goals = goals
        self._open: dict[Request, OpenHistory] = {}  # histories of unfinished requests
        self._fresh: dict[Request, None] = {}  # requests added since the last decision
        self._behind_parent: dict[Request, None] = {}
        self._catching_up: dict[Request, None] = {}  # running, more than one token behind
        self._left_out: dict[Request, None] = {}  # decoding requests that were not in the last step
        self._logs = (StopLog(is_fair=is_fair), StopLog(is_fair=is_fair))  # logs of interactive and background requests
        self._steps: deque[tuple[float, bool]] = deque()  # steps in flight: start, True if it computes prompts
        self._last_end = float("-inf")
        self._alone_s = 0.0  # seconds of all steps that computed no prompt
        self._beside_s = 0.0  # seconds of the steps that did

    @classmethod
    def of(cls, config: EngineConfig) -> "Histories":
        """Create the observer of a scheduler with this config."""
        has_goals = has_extra("deadlines")
        goals = load_extra("deadlines.goals", needed_for="goals").GoalTable(config) if has_goals else None
        return cls(is_fair=config.scheduling_policy == "fair", goals=goals)

    def added(self, request: Request, predicted_ttft: float | None) -> None:
        """Begin the history of a request that was queued."""
        phase = "interrupted" if request.num_output_tokens else "queue.step"
        self._open[request] = history = OpenHistory(request.arrival_time, phase, predicted_ttft)
        goal_s = None if self._goals is None else self._goals.of(request).ttft_s
        if goal_s is not None:
            slack = () if predicted_ttft is None else (goal_s - predicted_ttft,)
            history.note(request.arrival_time, "goal", "", goal_s, *slack)
        self._fresh[request] = None

    def preempted(self, request: Request, now: float, *, is_swapped: bool, prices: Prices, gave_way: bool) -> None:
        """Note that a request is about to lose its blocks."""
        history = self._open[request]
        self._leave(history, "preempted", now)
        self._catching_up.pop(request, None)
        self._left_out.pop(request, None)
        costs = (-1.0 if price is None else price for price in prices)
        numbers = (request.num_computed_tokens, *costs, *[1.0] * gave_way)
        history.note(now, "preempted", "swap" if is_swapped else "recompute", *numbers)

    def admitted(self, request: Request, now: float) -> None:
        """Note that a request runs from now on."""
        history = self._open[request]
        is_swapped_in = bool(request.num_preemptions and request.num_computed_tokens == request.num_tokens - 1)
        self._end_wait(request, history, now, "prefill" if not request.num_preemptions else "recompute")
        history.note(now, "admitted", "", request.num_computed_tokens, request.num_tokens)
        history.num_computed = request.num_computed_tokens
        if is_swapped_in:
            self._begin_decode(history, now)
        else:
            self._catching_up[request] = None
        self._fresh.pop(request, None)
        self._behind_parent.pop(request, None)

    def decided(self, plan: Plan, running: Sequence[Request], now: float) -> None:
        """Note a step that was decided and applied."""
        for stop in plan.stops:
            self._logs[stop.request.is_background].note(stop, now)
        if self._fresh:
            for request in self._fresh:
                if request.status is Status.WAITING:
                    self._open[request].turn("queue", now)
            self._fresh.clear()
        if plan.behind_parent or self._behind_parent:
            self._wait_for_parents(plan.behind_parent, now)
        num_chunks = (
            sum(self._catch_up(request, plan, now) for request in self._catching_up) if self._catching_up else 0
        )
        if self._left_out or len(plan.num_tokens) != len(running):
            self._leave_out(plan, running, now)
        self._steps.append((now, num_chunks > 0))

    def step_ended(self, now: float) -> None:
        """Count the time of the oldest step in flight, which has results that are not applied yet."""
        start, has_prompts = self._steps.popleft()
        seconds = now - max(start, self._last_end)  # a step begins after the end of the step before it
        self._last_end = now
        if has_prompts:
            self._beside_s += seconds
        else:
            self._alone_s += seconds

    def updated(self, now: float) -> None:
        """Note the requests that begin to decode, after a step's results have been applied."""
        if not self._catching_up:
            return
        for request in [request for request in self._catching_up if request.last_token_time == now]:
            del self._catching_up[request]
            history = self._open[request]
            history.spend(history.phase, now - history.since)
            self._begin_decode(history, now)

    def finished(self, request: Request, now: float) -> None:
        """End the history of a request that has ended."""
        history = self._open.pop(request)
        self._end(request, history, now)
        request.history = history.closed()
        for requests in (self._fresh, self._behind_parent, self._catching_up, self._left_out):
            requests.pop(request, None)

    def so_far(self, request: Request, now: float) -> History:
        """Return the history so far of a request that has not ended."""
        history = self._open[request].copy()
        self._end(request, history, now)
        return history.closed()

    def _end(self, request: Request, history: OpenHistory, now: float) -> None:
        if history.phase == "decode":
            self._leave(history, "", now)
        else:
            self._end_wait(request, history, now, "")

    def _end_wait(self, request: Request, history: OpenHistory, now: float, phase: str) -> None:
        """Spend the seconds of a wait that is over on the reasons for the wait."""
        kind, start = history.phase, history.since
        if kind in ("queue", "preempted"):
            for wait in self._logs[request.is_background].waits(request, start, now):
                history.note(wait.start, "waits", wait.why, *[wait.num_missing] * bool(wait.num_missing))
                history.spend(f"{kind}.{wait.why}", wait.end - wait.start)
            if now < start:  # the clock went back
                history.spend(f"{kind}.unknown", now - start)
            history.phase, history.since = phase, now
        else:
            history.turn(phase, now)

    def _wait_for_parents(self, behind: Sequence[Request], now: float) -> None:
        for request in behind:
            if request not in self._behind_parent:
                history = self._open[request]
                kind = history.phase.partition(".")[0]
                self._end_wait(request, history, now, f"{kind}.parent")
                history.note(now, "waits", "parent")
        for request in self._behind_parent.keys() - behind:
            self._open[request].turn(self._open[request].phase.partition(".")[0], now)
        self._behind_parent = dict.fromkeys(behind)

    def _catch_up(self, request: Request, plan: Plan, now: float) -> bool:
        """Note the request's chunk of this step, or its pause. Return True if it has a chunk."""
        history = self._open[request]
        start, history.num_computed = history.num_computed, request.num_computed_tokens
        num_tokens = min(request.num_computed_tokens, request.num_tokens) - start
        if num_tokens > 0:
            self._resume(history, "recompute" if request.num_preemptions else "prefill", now)
            others = sum(plan.num_tokens.values()) - plan.num_tokens[request], len(plan.num_tokens) - 1
            history.note(now, "chunk", "", start, num_tokens, *others)
        elif request not in plan.num_tokens:
            is_decode = request.num_uncomputed_tokens == 1
            self._pause(history, _why_left_out(plan, Source.DECODES if is_decode else Source.CHUNKS), now)
        return num_tokens > 0

    def _leave_out(self, plan: Plan, running: Sequence[Request], now: float) -> None:
        """Note decoding requests that leave the steps, and requests that are back in them."""
        for request in [request for request in self._left_out if request in plan.num_tokens]:
            del self._left_out[request]
            self._resume(self._open[request], "decode", now)
        if len(plan.num_tokens) == len(running):
            return
        for request in running:
            if request in plan.num_tokens or request in self._catching_up:
                continue
            if request.num_tokens + request.num_output_placeholders < request.max_num_tokens:
                self._pause(self._open[request], _why_left_out(plan, Source.DECODES), now)
                self._left_out[request] = None

    def _pause(self, history: OpenHistory, why: str, now: float) -> None:
        if history.phase != f"paused.{why}":
            self._leave(history, f"paused.{why}", now)
            history.note(now, "paused", why)

    def _resume(self, history: OpenHistory, phase: str, now: float) -> None:
        if history.phase == phase:
            return
        history.turn(phase, now)
        if phase == "decode":
            self._begin_decode(history, now)

    def _begin_decode(self, history: OpenHistory, now: float) -> None:
        history.phase, history.since = "decode", now
        history.split = (self._alone_s, self._beside_s)

    def _leave(self, history: OpenHistory, phase: str, now: float) -> None:
        """Begin another phase; seconds of decoding are divided by the kinds of steps."""
        if history.phase != "decode":
            history.turn(phase, now)
            return
        seconds_left = now - history.since
        alone, beside = self._alone_s - history.split[0], self._beside_s - history.split[1]
        for name, seconds in (("alone", alone), ("beside_prompts", beside)):
            spent = max(0.0, min(seconds, seconds_left))  # a step may have begun before, or end after
            history.spend(f"decode.{name}", spent)
            seconds_left -= spent
        history.spend("decode.between_steps", seconds_left)
        history.phase, history.since = phase, now


def _why_left_out(plan: Plan, source: Source) -> str:
    return "budget" if source in plan.sources else "policy"
