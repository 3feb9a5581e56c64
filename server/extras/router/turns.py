"""Turns: which models are in memory, which requests they take, and who waits. Knows no process, socket or clock.

    unloaded -> loading -> ready -> unloading -> unloaded; a process that ends leaves its model unloaded

A model in memory takes requests at once. A model that is not, and is wanted, gets the place of one without work, the
least recently used. If all work, one of them is closed once the wanted model has waited for `turn_s`: requests that run
there end, and new ones queue behind. Accepted work can go on later: its model leaves, and is wanted again.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

UNLOADED, LOADING, READY, UNLOADING = "unloaded", "loading", "ready", "unloading"
LINGER_S = 0.2  # from a model's last answer until it gives its place: its client may go on


@dataclass(slots=True)
class ModelTurn:
    """State of one model. `Turns` alone writes it."""

    name: str
    is_pinned: bool = False  # stays in memory
    idle_s: float | None = None  # time without work after which the model leaves memory
    state: str = UNLOADED
    since: float = 0.0  # beginning of the state
    load_s: float = 0.0  # length of the last load
    last_used: float = 0.0
    num_running: int = 0  # requests
    num_jobs: int | None = 0  # accepted work that goes on without a request; None: unknown
    num_admitted: int = 0  # requests so far
    waiting: dict[int, float] = field(default_factory=dict)  # arrivals by ticket
    owed_since: float | None = None  # accepted work, or an operator, waits for the model
    not_before: float = 0.0  # earliest next load, after one that failed
    is_dismissed: bool = False  # leaves memory as soon as it has no work

    @property
    def wanted_since(self) -> float | None:
        """Time since when somebody waits for the model; None if nobody does."""
        times = [*self.waiting.values(), *([] if self.owed_since is None else [self.owed_since])]
        return min(times, default=None)

    @property
    def is_quiet(self) -> bool:
        """True if the model has no work, as far as it was told."""
        return self.num_running == 0 and self.num_jobs == 0

    @property
    def has_entitled(self) -> bool:
        """True if a request waits that came before the model was ready: this turn is its own."""
        return any(arrival <= self.since for arrival in self.waiting.values())


@dataclass(slots=True)
class Plan:
    """What to do now. `ask`: models whose number of jobs must be known. `wake_at`: time of the next plan."""

    admit: list[int] = field(default_factory=list)
    load: list[str] = field(default_factory=list)
    unload: list[str] = field(default_factory=list)
    ask: list[str] = field(default_factory=list)
    wake_at: float = math.inf


class Turns:
    """Turns of models in `max_resident` places. Times are seconds of any one clock."""

    def __init__(
        self, models: Iterable[ModelTurn], *, max_resident: int, turn_s: float, linger_s: float = LINGER_S
    ) -> None:
        self.models = {model.name: model for model in models}
        self._max_resident = max_resident
        self._turn_s = turn_s
        self._linger_s = linger_s
        self._tickets: dict[int, ModelTurn] = {}

    def arrive(self, ticket: int, name: str, arrival: float) -> None:
        """Take a request. `arrival` lies before now if the request has waited already."""
        self._tickets[ticket] = self.models[name]
        self.models[name].waiting[ticket] = arrival

    def name_of(self, ticket: int) -> str:
        """Return the model that a request waits for, or runs on."""
        return self._tickets[ticket].name

    def admit(self, ticket: int, now: float) -> None:
        """Begin a request of a plan."""
        model = self._tickets[ticket]
        del model.waiting[ticket]
        model.num_running += 1
        model.num_admitted += 1
        model.num_jobs, model.last_used = None, now

    def leave(self, ticket: int, now: float) -> None:
        """Forget a request that has ended, or whose client waits no longer."""
        model = self._tickets.pop(ticket, None)
        if model is not None and model.waiting.pop(ticket, None) is None:
            model.num_running -= 1
            model.last_used = now

    def begin_load(self, name: str, now: float) -> None:
        """Take a place."""
        self._set(name, LOADING, now)

    def loaded(self, name: str, now: float) -> None:
        """Begin the model's turn. A process that went on with accepted work has an unknown number of jobs."""
        model = self.models[name]
        model.load_s, model.last_used, model.owed_since, model.num_jobs = now - model.since, now, None, None
        self._set(name, READY, now)

    def begin_unload(self, name: str, now: float) -> None:
        """Let the model leave; its place is free at its end. Accepted work is owed."""
        if self.models[name].num_jobs:
            self.models[name].owed_since = now
        self._set(name, UNLOADING, now)

    def ended(self, name: str, now: float, *, pause_s: float = 0.0) -> None:
        """Free the place of a process that has ended, by itself or not. Requests that ran there are forgotten.

        A model that may owe accepted work is wanted again. `pause_s`: time until the next load.
        """
        model = self.models[name]
        if model.state != UNLOADING and model.num_jobs != 0 and model.owed_since is None:
            model.owed_since = now
        for ticket in [ticket for ticket, of in self._tickets.items() if of is model and ticket not in model.waiting]:
            del self._tickets[ticket]
        model.num_running, model.num_jobs, model.is_dismissed = 0, 0, False
        model.not_before = now + pause_s
        self._set(name, UNLOADED, now)

    def report_jobs(self, name: str, num_jobs: int, now: float) -> None:
        """Note a ready model's accepted work that is unfinished."""
        model = self.models[name]
        if num_jobs or model.num_jobs:
            model.last_used = now
        model.num_jobs = num_jobs

    def want(self, name: str, now: float) -> None:
        """Load the model in its turn, without a request."""
        model = self.models[name]
        model.is_dismissed = False
        if model.state in (UNLOADED, UNLOADING) and model.owed_since is None:
            model.owed_since = now

    def dismiss(self, name: str) -> None:
        """Let the model leave memory as soon as it has no work."""
        model = self.models[name]
        model.is_dismissed = model.state in (LOADING, READY) or model.owed_since is not None

    def plan(self, now: float) -> Plan:
        """Decide; changes nothing. The caller does all of it before the next plan."""
        plan = Plan()
        closed = self._give_places(plan, now)
        for model in self.models.values():
            if model.state != READY or model.name in plan.unload:
                continue
            is_closed = model.name in closed
            admitted = [t for t, arrival in model.waiting.items() if not is_closed or arrival <= model.since]
            plan.admit += admitted
            limit = 0.0 if model.is_dismissed else None if model.is_pinned else model.idle_s
            if limit is not None and not admitted and not model.waiting and not model.num_running:
                self._unload_after(model, limit, plan, now)
        return plan

    def check(self) -> None:
        """Assert the invariants."""
        resident = [model for model in self.models.values() if model.state != UNLOADED]
        assert len(resident) <= self._max_resident
        for model in self.models.values():
            running = [t for t, of in self._tickets.items() if of is model and t not in model.waiting]
            assert len(running) == model.num_running
            assert model.state == READY or not running, "a request runs without its model"

    def _set(self, name: str, state: str, now: float) -> None:
        model = self.models[name]
        model.state, model.since = state, now

    def _give_places(self, plan: Plan, now: float) -> set[str]:
        """Plan loads and unloads for the models that are wanted, the longest wait first. Returns who is closed."""
        unloaded = [model for model in self.models.values() if model.state == UNLOADED]
        claims = [(since, model) for model in unloaded if (since := model.wanted_since) is not None]
        num_free = self._max_resident - len(self.models) + len(unloaded)
        num_leaving = sum(m.state == UNLOADING for m in self.models.values())
        closed = set[str]()
        for since, claim in sorted(claims, key=lambda pair: pair[0]):
            if claim.not_before > now:
                plan.wake_at = min(plan.wake_at, claim.not_before)
            elif num_free > 0:
                num_free -= 1
                plan.load.append(claim.name)
            elif num_leaving > 0:
                num_leaving -= 1
            else:
                self._take_place(since, plan, closed, now)
        return closed

    def _take_place(self, since: float, plan: Plan, closed: set[str], now: float) -> None:
        """Plan the end of one model's turn for a claim since this time: unload it, or close it, or wait."""
        candidates = [
            model
            for model in self.models.values()
            if model.state == READY and not model.is_pinned and not model.has_entitled
            if model.name not in closed and model.name not in plan.unload
        ]
        for model in sorted(candidates, key=lambda model: model.last_used):
            if not model.waiting and not model.num_running:
                self._unload_after(model, self._linger_s, plan, now)
                if model.name in plan.unload:
                    return
        # A turn is as long as its load took, or nothing but loads would be done.
        ends = {m.name: max(since + self._turn_s, m.since + m.load_s) for m in candidates}
        over = [model for model in candidates if ends[model.name] <= now]
        if not over:
            plan.wake_at = min([plan.wake_at, *ends.values()])
            return
        model = min(over, key=lambda model: (not model.is_quiet, model.since))
        closed.add(model.name)
        if not model.num_running:
            self._unload_after(model, 0.0, plan, now, most_jobs=math.inf)

    @staticmethod
    def _unload_after(model: ModelTurn, seconds: float, plan: Plan, now: float, *, most_jobs: float = 0) -> None:
        """Unload a model that was used last so long ago, once it has no requests and at most so many known jobs."""
        if (end := model.last_used + seconds) > now:
            plan.wake_at = min(plan.wake_at, end)
        elif model.num_jobs is not None and model.num_jobs <= most_jobs:
            plan.unload.append(model.name)
        elif model.name not in plan.ask:
            plan.ask.append(model.name)
