"""Plan: decisions for one step, not yet applied; StepBudget: tokens and blocks left to give while a plan is made.

Pace: limits of a step, and the order of its prompts, that a Pacer (ports.py) derives from times.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import NamedTuple

from .batch import Batch
from .block_ports import Prefix
from .policies import Source, num_interactive
from .preemption_costs import Prices
from .request import Request, Status


class Pace(NamedTuple):
    """Pace of one step. An empty pace leaves the step its whole budget, and the prompts in queue order."""

    budget: int | None = None  # tokens, if fewer than max_num_batched_tokens
    background_budget: int | None = None  # tokens of background requests beside interactive ones
    order: Sequence[Request] = ()  # interactive prompts, the first to be computed first; others follow in queue order

    def sorted(self, requests: Sequence[Request], *, without: Container[Request] = ()) -> Sequence[Request]:
        """Return the requests, `order` first where it names them. `without`: requests of `order` to leave out."""
        if not self.order:
            return requests
        places = {request: place for place, request in enumerate(self.order)}
        return sorted((r for r in requests if r not in without), key=lambda r: places.get(r, len(places)))

    @property
    def ahead(self) -> list[Request]:
        """Waiting requests that go before every prompt which has begun."""
        return list(takewhile(lambda request: request.status is not Status.RUNNING, self.order))


class AdmissionBlock(NamedTuple):
    """First request of its class (interactive or background) that was not admitted, and the reason.

    `reason`: budget (no tokens were left), sequences (max_num_seqs run), blocks (`num_missing` were missing), policy
    (the batching policy admits none in this step), preemption (a running request lost its blocks in this step),
    interactive (a background request, and an interactive one waits), tenant (its tenant may run no more sequences now).
    """

    request: Request
    reason: str
    num_missing: int = 0


@dataclass(slots=True)
class Plan:
    """Decisions for one step, and the reasons for them. Only the planner writes to a plan."""

    sources: tuple[Source, ...] = ()  # the round's sources; the policy left out running requests of all others
    num_tokens: dict[Request, int] = field(default_factory=dict)  # in the order in which requests drew on the budget
    num_drafts: dict[Request, int] = field(default_factory=dict)  # how many of a request's tokens are drafts
    new_blocks: dict[Request, int] = field(default_factory=dict)  # free blocks for each request
    preempted: dict[Request, bool] = field(default_factory=dict)  # True: swapped out; False: recomputed later
    gave_way: list[Request] = field(default_factory=list)  # preempted for a tenant with a smaller share
    prices: dict[Request, Prices] = field(default_factory=dict)  # prices of each preempted request
    admitted: dict[Request, Prefix] = field(default_factory=dict)  # with the prefix that need not be computed
    behind_parent: list[Request] = field(default_factory=list)  # they wait until the prompt they share is computed
    over_limit: list[Request] = field(default_factory=list)  # their tenants run as many sequences as they may
    stops: list[AdmissionBlock] = field(
        default_factory=list
    )  # at most one for interactive and one for background requests

    def add_stops(self, queues: "Queues") -> None:
        """Add a stop for each class (interactive, background) whose first waiting request was not tried."""
        if not queues.waiting and not self.preempted:
            return
        num_waiting = num_interactive(queues.waiting)
        for is_background, waiting in ((False, queues.waiting[:num_waiting]), (True, queues.waiting[num_waiting:])):
            preempted = [request for request in self.preempted if request.is_background == is_background]
            passed = [r for r in (*self.admitted, *self.behind_parent) if r.is_background == is_background]
            has_stop = any(stop.request.is_background == is_background for stop in self.stops)
            if has_stop or (len(passed) == len(waiting) and not preempted):
                continue
            request = waiting[0] if waiting else preempted[0]
            if is_background and len(self.admitted) < num_waiting:
                self.stops.append(AdmissionBlock(request, "interactive"))
            else:
                self.stops.append(AdmissionBlock(request, "preemption" if self.preempted else "policy"))


class Queues(NamedTuple):
    """Requests to decide on, in queue order."""

    running: Sequence[Request]  # without requests that reach their length with a step in flight
    waiting: Sequence[Request]
    in_flight: Sequence[Batch]

    def by_class(self) -> tuple["Queues", "Queues"]:
        """Split into interactive and background requests."""
        num_running, num_waiting = num_interactive(self.running), num_interactive(self.waiting)
        if num_running == len(self.running) and num_waiting == len(self.waiting):
            return self, Queues((), (), self.in_flight)
        interactive = Queues(self.running[:num_running], self.waiting[:num_waiting], self.in_flight)
        return interactive, Queues(self.running[num_running:], self.waiting[num_waiting:], self.in_flight)


@dataclass(slots=True)
class StepBudget:
    """Tokens and blocks left to give while `plan` is made for the requests of `queues`."""

    queues: Queues
    plan: Plan
    tokens: int
    blocks: int
    pace: Pace
    promised_blocks: int = 0  # blocks that admitted prompts will still need; not for waiting requests
    shared_blocks: set[int] = field(default_factory=set)  # free blocks that admitted requests share

    def give(self, request: Request, num_tokens: int, num_blocks: int) -> None:
        """Give a request its first tokens, with the blocks for them."""
        self.tokens -= num_tokens
        self.blocks -= num_blocks
        self.plan.num_tokens[request] = num_tokens
        self.plan.new_blocks[request] = num_blocks

    def give_one_each(self, new_blocks: Mapping[Request, int], num_blocks: int) -> None:
        """Give every request of `new_blocks` its first token, with its blocks, `num_blocks` in all."""
        self.tokens -= len(new_blocks)
        self.blocks -= num_blocks
        self.plan.num_tokens.update(dict.fromkeys(new_blocks, 1))
        self.plan.new_blocks.update(new_blocks)

    def give_drafts(self, request: Request, num_drafts: int, num_blocks: int) -> None:
        """Give more tokens, for drafts, to a request that has got its own."""
        self.tokens -= num_drafts
        self.blocks -= num_blocks
        self.plan.num_tokens[request] += num_drafts
        self.plan.new_blocks[request] += num_blocks
        self.plan.num_drafts[request] = num_drafts

    def take_back(self, request: Request, num_freed: int) -> None:
        """Take back what a preempted request was given, and the `num_freed` blocks that it held."""
        self.tokens += self.plan.num_tokens.pop(request, 0)
        self.blocks += self.plan.new_blocks.pop(request, 0) + num_freed
