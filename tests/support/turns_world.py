"""Random worlds of models in turns: clients, loads, accepted jobs, kills; and the rules that hold after each event."""

import heapq
import itertools
import math
import random
from collections.abc import Callable
from dataclasses import dataclass

from splitfuse.server.extras.router.turns import READY, UNLOADED, ModelTurn, Turns

ASK_S = 0.25


@dataclass(frozen=True)
class TurnsSettings:
    """One world's numbers; all times are seconds."""

    seed: int
    num_models: int
    max_resident: int
    load_s: float
    unload_s: float
    answer_s: float  # the longest
    job_s: float  # the longest accepted work; 0: none
    turn_s: float
    idle_s: float | None
    num_kills: int
    num_clients: int

    @classmethod
    def random(cls, seed: int) -> "TurnsSettings":
        draw = random.Random(seed)
        num_models = draw.randint(2, 5)
        return cls(
            seed=seed,
            num_models=num_models,
            max_resident=draw.randint(1, num_models - 1) if draw.random() < 0.9 else num_models,
            load_s=draw.choice([0.1, 1.0, 8.0]),
            unload_s=draw.choice([0.0, 0.3, 2.0]),
            answer_s=draw.choice([0.1, 2.0, 10.0]),
            job_s=draw.choice([0.0, 0.0, 5.0]),
            turn_s=draw.choice([0.0, 1.0, 5.0]),
            idle_s=draw.choice([None, 0.0, 3.0]),
            num_kills=draw.choice([0, 0, 3]),
            num_clients=draw.randint(1, 6),
        )

    @property
    def longest_wait_s(self) -> float:
        """Bound that the documents state, for each model that may be ahead, and once for one's own."""
        work_s = self.answer_s + 2 * ASK_S
        turn_s = max(self.turn_s, self.load_s) + work_s + self.unload_s + self.load_s + 0.5
        return (self.num_models + self.num_kills) * turn_s


class TurnsWorld:
    """World of one Turns. A greedy client's requests overlap, so its model never rests by itself."""

    def __init__(self, settings: TurnsSettings) -> None:
        self.settings = settings
        self.draw = random.Random(settings.seed)
        self.now = 0.0
        self.names = [f"m{number}" for number in range(settings.num_models)]
        models = [ModelTurn(name, idle_s=settings.idle_s) for name in self.names]
        self.turns = Turns(models, max_resident=settings.max_resident, turn_s=settings.turn_s)
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.order = itertools.count()
        self.tickets = itertools.count(1)
        self.lives = dict.fromkeys(self.names, 0)  # processes so far, so that a dead one's events do nothing
        self.arrivals: dict[int, float] = {}
        self.running: dict[int, str] = {}
        self.jobs: dict[str, list[float]] = {name: [] for name in self.names}  # ends of accepted work, or what is left
        self.num_served = dict.fromkeys(self.names, 0)
        self.asked = set[str]()
        self.is_closing = False
        self.wake_at = math.inf

    def run(self, num_steps: int) -> None:
        """Let clients send for so many events, then let all end. Raises AssertionError from a broken rule."""
        try:
            self._run(num_steps)
        except AssertionError as broken:
            raise AssertionError(f"{broken}; at {self.now:.2f} s of {self.settings}") from broken

    def _run(self, num_steps: int) -> None:
        settings = self.settings
        for number in range(settings.num_clients):
            self.at(self.draw.random(), lambda greedy=number == 0: self.client(is_greedy=greedy))
        for _ in range(settings.num_kills):
            self.at(self.draw.uniform(0, num_steps / 4), self.kill)
        for count in itertools.count():
            self.is_closing = count >= num_steps
            self.step()
            if self.is_closing and not self.arrivals and not self.running and not any(self.jobs.values()):
                return
            assert self.events, f"nothing happens any more, and these wait: {self.arrivals}, {self.jobs}"
            assert count < 60 * num_steps, "it does not end"
            self.now, _, event = heapq.heappop(self.events)
            event()

    def at(self, delay: float, event: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + delay, next(self.order), event))

    def client(self, *, is_greedy: bool) -> None:
        if self.is_closing:
            return
        ticket, name = next(self.tickets), self.names[0] if is_greedy else self.draw.choice(self.names)
        self.arrivals[ticket] = self.now
        self.turns.arrive(ticket, name, self.now)
        pause = self.settings.answer_s / 3 if is_greedy else self.draw.expovariate(1 / (2 * self.settings.answer_s))
        self.at(pause, lambda: self.client(is_greedy=is_greedy))
        if self.draw.random() < 0.1:
            self.at(self.draw.random() * 5, lambda: self.give_up(ticket))

    def give_up(self, ticket: int) -> None:
        if ticket in self.arrivals:
            del self.arrivals[ticket]
            self.turns.leave(ticket, self.now)

    def kill(self) -> None:
        ready = [name for name in self.names if self.turns.models[name].state == READY]
        if not ready:
            return
        name = self.draw.choice(ready)
        self.lives[name] += 1
        self.jobs[name] = self.left(name)
        lost = [ticket for ticket, of in self.running.items() if of == name]
        self.turns.ended(name, self.now)
        for ticket in lost:  # each is sent again
            del self.running[ticket]
            again = next(self.tickets)
            self.arrivals[again] = self.now
            self.turns.arrive(again, name, self.now)

    def step(self) -> None:
        """Do what is planned, as the router does, and check the rules."""
        turns, plan = self.turns, self.turns.plan(self.now)
        for ticket in plan.admit:
            turns.admit(ticket, self.now)
            self.begin(ticket)
        for name in plan.unload:
            model = turns.models[name]
            assert name not in self.running.values(), "a model leaves that answers a request"
            assert not self.jobs[name] or self.is_over(name), "a model leaves with accepted work in its turn"
            assert self.num_served[name] or self.settings.idle_s is not None or not model.waiting, "a turn without work"
            assert not any(arrival <= model.since for arrival in model.waiting.values()), "a turn that serves nobody"
            turns.begin_unload(name, self.now)
            self.lives[name] += 1
            self.jobs[name] = self.left(name)
            self.alive(name, self.settings.unload_s, lambda name=name: turns.ended(name, self.now))
        for name in plan.load:
            turns.begin_load(name, self.now)
            self.alive(name, self.settings.load_s, lambda name=name: self.loaded(name))
        for name in set(plan.ask) - self.asked:
            self.asked.add(name)
            self.at(ASK_S if turns.models[name].num_jobs else 0.01, lambda name=name: self.report(name))
        assert plan.wake_at > self.now
        if plan.wake_at < self.wake_at:
            self.wake_at = plan.wake_at
            self.at(plan.wake_at - self.now, self.wake)
        turns.check()
        self.check()

    def check(self) -> None:
        models = self.turns.models.values()
        late = [ticket for ticket, since in self.arrivals.items() if self.now - since > self.settings.longest_wait_s]
        assert not late, f"requests {late} wait longer than {self.settings.longest_wait_s:g} s"
        is_wanted = any(model.state != READY and model.wanted_since is not None for model in models)
        idle_places = self.settings.max_resident - sum(model.state != UNLOADED for model in models)
        for model in models:
            if model.state == READY and not is_wanted:
                assert not model.waiting, "a request waits for nothing"
            if model.state == UNLOADED and model.waiting:
                assert idle_places <= 0, "a place is free, and a request waits"

    def wake(self) -> None:
        """Plan again."""
        self.wake_at = math.inf

    def alive(self, name: str, delay: float, event: Callable[[], None]) -> None:
        """Have an event of the model's present process."""
        life = self.lives[name]
        self.at(delay, lambda: event() if self.lives[name] == life else None)

    def is_over(self, name: str) -> bool:
        """True if the model's turn is over, because another one has waited for as long as it may."""
        model = self.turns.models[name]
        others = [other.wanted_since for other in self.turns.models.values() if other.state == UNLOADED]
        since = min((since for since in others if since is not None), default=math.inf)
        return self.now >= max(since + self.settings.turn_s, model.since + model.load_s)

    def loaded(self, name: str) -> None:
        self.num_served[name] = 0
        self.turns.loaded(name, self.now)
        lengths, self.jobs[name] = self.jobs[name], []
        for length in lengths:  # goes on with accepted work
            self.job(name, length)

    def job(self, name: str, length: float) -> None:
        """Have accepted work take so long; a process that ends leaves the rest to the next one."""
        end = self.now + length
        self.jobs[name].append(end)
        self.alive(name, length, lambda: self.jobs[name].remove(end))

    def left(self, name: str) -> list[float]:
        """Return how much of each accepted work is left, when its process ends."""
        return [max(end - self.now, 0.0) for end in self.jobs[name]]

    def begin(self, ticket: int) -> None:
        name = self.turns.name_of(ticket)
        del self.arrivals[ticket]
        self.running[ticket] = name
        self.num_served[name] += 1
        if self.settings.job_s and self.draw.random() < 0.2:
            self.job(name, self.draw.uniform(0.1, 1) * self.settings.job_s)

        def end() -> None:
            del self.running[ticket]
            self.turns.leave(ticket, self.now)

        self.alive(name, self.draw.uniform(0.1, 1) * self.settings.answer_s, end)

    def report(self, name: str) -> None:
        self.asked.discard(name)
        if self.turns.models[name].state == READY and name not in self.running.values():
            self.turns.report_jobs(name, len(self.jobs[name]), self.now)
