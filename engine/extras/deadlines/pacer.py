"""DeadlinePacer: the size of steps and the order of prompts, from goals and from the measured cost of steps.

A prompt's slack: the time at which its first token is due, less now, less the seconds that it still takes. Prompts with
slack go before others, by Moore's rule; a stream's slack limits the step's time. Pure: the clock is the core's.
"""

import heapq
from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import NamedTuple

from ...config import ResolvedConfig
from ...core.batch import Batch, BatchRow
from ...core.cost_model import CostModel
from ...core.plan import Pace
from ...core.policies import Source, by_source, num_interactive
from ...core.ports import Pacer
from ...core.request import Request
from ...serving.engine_part import Assembly, EnginePart
from .goals import GoalTable
from .step_time import StepTimes


class Job(NamedTuple):
    """Prompt with a goal: the time at which its first token is due, and the seconds that its computation takes."""

    due: float
    seconds: float
    request: Request


def on_time(jobs: Iterable[Job], now: float) -> list[Job]:
    """Return the largest set of jobs that all end in time if they run one after the other, in the order to run them.

    Moore 1968, "An n job, one machine sequencing algorithm for minimizing the number of late jobs": by due time, and
    whenever one would be late the longest so far goes.
    """
    kept: dict[int, Job] = {}
    longest: list[tuple[float, int]] = []
    ties, end = count(), now
    for job in sorted(jobs, key=lambda job: (job.due, job.request.arrival_order)):
        number = next(ties)
        kept[number] = job
        heapq.heappush(longest, (-job.seconds, -number))
        end += job.seconds
        if end > job.due:
            seconds, number = heapq.heappop(longest)
            del kept[-number]
            end += seconds
    return list(kept.values())


def within_groups(
    order: Sequence[Request], places: Sequence[Request], group_of: Callable[[Request], Hashable]
) -> list[Request]:
    """Return `places` with the requests of each group in their order of `order`: no group takes another's place."""
    queues: dict[Hashable, list[Request]] = {}
    for request in reversed(order):
        queues.setdefault(group_of(request), []).append(request)
    return [queues[group_of(request)].pop() for request in places]


class FairShare:
    """Share of the prompt tokens that requests without a goal, or too late for theirs, get while others have goals.

    When it has fallen behind, the first of them in queue order goes before all others, until it gets tokens: so it is
    not overtaken for ever, even if it lacks blocks or a sequence.
    """

    def __init__(self, share: float, *, most: int) -> None:
        """`most`: tokens by which the share may be behind or ahead."""
        self._share, self._most = share, most
        self._num_behind = 0.0  # tokens

    @property
    def is_behind(self) -> bool:
        """True if the next tokens are for requests without a goal."""
        return self._num_behind > 0

    def computed(self, num_tokens: int, num_without_goal: int) -> None:
        """Note the prompt tokens of a step, and how many of them belong to requests without a goal."""
        behind = self._num_behind + self._share * num_tokens - num_without_goal
        self._num_behind = max(-self._most, min(self._most, behind))


GOAL_COUNTS = ("ttft_goal_hits", "ttft_goal_misses", "itl_goal_hits", "itl_goal_misses")
_NO_PACE = Pace()
_SHARE_WITHOUT_GOALS = 0.1  # share of prompt tokens, where others have goals
_MOST_AHEAD = 4  # goals between tokens by which one step may be longer, where a stream is ahead of its goal
_LEAST_STRETCH = 1.25  # steps of the streams alone that a step with prompts may take, whatever the goals are
_LEAST_STEP = 0.5  # goals between tokens that a step may take at least, where a stream is behind


class Outlook(NamedTuple):
    """Prediction for a request that comes now: seconds until its first token, and the seconds that it may take."""

    predicted_s: float
    goal_s: float


class Deadlines(EnginePart):
    """Part of an engine: its pacer."""

    def pacer(self, pacer: Pacer, assembly: Assembly) -> Pacer:
        return DeadlinePacer(assembly.config, assembly.cost_model)


class DeadlinePacer(Pacer):
    """Pacer of one core, whose cost model it reads."""

    def __init__(self, config: ResolvedConfig, model: CostModel) -> None:
        self._times = StepTimes(config, model)
        self._goals = GoalTable(config)
        self._orders_prompts = config.batching_policy == "splitfuse"
        self._group = {"priority": _priority, "fair": _tenant}.get(config.scheduling_policy)
        self._due: dict[Request, float] = {}  # first tokens that can still be in time
        self._streams: dict[Request, float] = {}  # unfinished requests with a goal between tokens
        self._share = FairShare(_SHARE_WITHOUT_GOALS, most=4 * config.max_num_batched_tokens)
        self._decodes_alone = False  # the last step computed no prompt
        self._num_rows = 0  # rows of the last step
        self._counts = dict.fromkeys(GOAL_COUNTS, 0)

    def note(self, request: Request) -> None:
        """Note the goals of a request that was queued, and how they were met once it has ended."""
        if request.is_finished:
            self._end(request)
            return
        goals = self._goals.of(request)
        if goals.ttft_s is not None and request.first_token_time is None:
            self._due[request] = request.arrival_time + goals.ttft_s
        if goals.itl_s is not None:
            self._streams[request] = goals.itl_s

    def _end(self, request: Request) -> None:
        self._due.pop(request, None)
        self._streams.pop(request, None)
        if request.finish_reason not in ("stop", "length", "timeout"):
            return
        goals = self._goals.of(request)
        late = -1.0 if goals.ttft_s is not None and request.first_token_time is None else None
        for name, slack in (("ttft", goals.ttft_slack(request) or late), ("itl", goals.itl_slack(request))):
            if slack is not None:
                self._counts[f"{name}_goal_{'hits' if slack >= 0 else 'misses'}"] += 1

    def pace(self, running: Sequence[Request], waiting: Sequence[Request], now: float) -> Pace:
        """Return the pace of the next step."""
        if self._decodes_alone and not waiting and self._num_rows >= len(running) and not _is_mixed(running):
            return _NO_PACE
        step = self._step(running, waiting, now)
        seconds = step.usual_s
        order: Sequence[Request] = ()
        if self._orders_prompts and (self._due or self._streams):
            jobs = self._jobs(step.prompts, step, step.usual_s)
            kept = on_time(jobs, now)
            if len(kept) < len(jobs) and step.longest_s != step.usual_s:
                seconds = step.longest_s
                jobs = self._jobs(step.prompts, step, seconds)
                kept = on_time(jobs, now)
            order = self._order(step.prompts, [job.request for job in kept])
        return Pace(self._budget(step, seconds), self._times.background_budget(running, waiting), order)

    def outlook(self, request: Request, running: Sequence[Request], waiting: Sequence[Request]) -> Outlook | None:
        """Predict the first token of a request that is not queued yet; None without a goal, or before costs are known.

        Prompts that are due before it, and can be in time, go before it.
        """
        goal_s, now = self._goals.of(request).ttft_s, request.arrival_time
        if goal_s is None or request.num_output_tokens or not self._times.model.has_learned:
            return None
        step = self._step(running, waiting, now)
        due = now + goal_s
        jobs = self._jobs(step.prompts, step, step.longest_s)
        before = [job for job in on_time(jobs, now) if job.due <= due]
        own = self._seconds(request, step, step.longest_s)
        return Outlook(sum(job.seconds for job in before) + own, goal_s)

    def decided(self, batch: Batch | None, now: float) -> None:
        """Note what the step computes, and first tokens that are late from now on."""
        rows: Sequence[BatchRow] = () if batch is None else batch.rows
        self._decodes_alone = bool(rows) and rows[-1].num_tokens == 1 and rows[-1].needs_sampling
        self._num_rows = len(rows)
        if not self._due:
            return
        num_tokens = num_without_goal = 0
        for row in reversed(rows):
            if row.num_tokens == 1:
                break
            num_tokens += row.num_tokens
            num_without_goal += 0 if row.request in self._due else row.num_tokens
        self._share.computed(num_tokens, num_without_goal)
        for request in [r for r, due in self._due.items() if due < now or r.first_token_time is not None]:
            del self._due[request]

    def check(self) -> None:
        """Prove the invariants; tests call this after every step."""
        assert not any(request.is_finished for request in (*self._due, *self._streams))
        assert not any(request.is_background for request in (*self._due, *self._streams))

    def stats(self) -> dict[str, int]:
        """Return the counts of goals met and missed."""
        return dict(self._counts)

    def _step(self, running: Sequence[Request], waiting: Sequence[Request], now: float) -> "_Step":
        sources = by_source(running[: num_interactive(running)])
        decodes, chunks = sources[Source.DECODES], sources[Source.CHUNKS]
        own = sum([request.num_computed_tokens for request in decodes])
        context = own + (chunks[0].num_computed_tokens if chunks else 0)
        prompts = [*chunks, *waiting[: num_interactive(waiting)]]
        usual = longest = None
        # Prompts alone are cut as well, so that an arrival with a goal need not wait for the end of a long step.
        if decodes or (self._due and self._times.is_auto and self._times.model.has_learned):
            usual = longest = self._times.usual_s(len(decodes), context)
        if self._streams and decodes:
            alone = self._times.model.predict(len(decodes), own)
            limits = [
                min(max(_slack(request, itl_s, now), _LEAST_STEP * itl_s), _MOST_AHEAD * itl_s)
                for request in decodes
                if (itl_s := self._streams.get(request)) is not None and itl_s > alone
            ]
            if limits:
                strictest = max(min(limits), _LEAST_STRETCH * alone)
                usual = strictest if usual is None else min(usual, strictest)
                longest = strictest if len(limits) == len(decodes) and self._times.fixed_s is None else usual
        return _Step(prompts, len(decodes), context, usual, longest)

    def _budget(self, step: "_Step", seconds: float | None) -> int | None:
        alone = not step.num_decodes and seconds is None
        return None if alone else self._times.budget(seconds, step.num_decodes, step.context)

    def _jobs(self, prompts: Sequence[Request], step: "_Step", seconds: float | None) -> list[Job]:
        return [
            Job(due, self._seconds(request, step, seconds), request)
            for request in prompts
            if (due := self._due.get(request)) is not None
        ]

    def _seconds(self, request: Request, step: "_Step", seconds: float | None) -> float:
        return self._times.prompt_s(request, self._budget(step, seconds), step.num_decodes, step.context)

    def _order(self, prompts: list[Request], on_time: list[Request]) -> Sequence[Request]:
        """Return the prompts in order, or nothing if that is the order in which they are served anyway."""
        first = [request for request in prompts if request.first_token_time is not None]  # they were preempted
        if self._share.is_behind:
            first += [r for r in prompts if r not in self._due and r.first_token_time is None][:1]
        named = {*first, *on_time}
        order = [*first, *on_time, *(request for request in prompts if request not in named)]
        if self._group is not None:
            order = within_groups(order, prompts, self._group)
        return () if order == prompts else order


class _Step(NamedTuple):
    prompts: list[Request]  # interactive requests, started ones first
    num_decodes: int
    context: int
    usual_s: float | None  # seconds of the step for smooth streams
    longest_s: float | None  # seconds that keep the goals of streams


def _slack(request: Request, itl_s: float, now: float) -> float:
    """Return the seconds until a stream's next token is due."""
    num_tokens = request.num_output_tokens + request.num_output_placeholders
    first = now if request.first_token_time is None else request.first_token_time
    return first + num_tokens * itl_s - now


def _is_mixed(running: Sequence[Request]) -> bool:
    return bool(running) and running[-1].is_background and not running[0].is_background


def _priority(request: Request) -> int:
    return request.params.priority


def _tenant(request: Request) -> str:
    return request.tenant
