"""Plan: what a step will do, decided and not yet applied; StepBudget: what is left to hand out meanwhile."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from .batch import Batch
from .block_manager import Prefix
from .policies import Source, num_interactive
from .preemption import Prices
from .request import Request


class Stop(NamedTuple):
    """Where admission stopped: the first request of its class that was to be admitted next, and why it was not.

    `reason`: budget (no tokens were left), sequences (max_num_seqs run), blocks (it lacked `num_missing`), policy (the
    batching policy admits none in this step), preemption (a running request lost its blocks in this step), interactive
    (a background request, and an interactive one waits).
    """

    request: Request
    reason: str
    num_missing: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """One step's decisions and what they were made for. Nothing has been changed yet."""

    num_tokens: dict[Request, int]  # in the order in which they took from the budget
    new_blocks: dict[Request, int]  # free blocks that each takes
    preempted: dict[Request, bool]  # → whether it is swapped out (else it will be recomputed)
    admitted: dict[Request, Prefix]  # → what it need not compute
    num_drafts: dict[Request, int]  # → how many of its tokens are drafts
    sources: tuple[Source, ...] = ()  # of the round: running requests of others were left out by the policy
    stops: tuple[Stop, ...] = ()  # at most one each for interactive and background requests
    behind_parent: tuple[Request, ...] = ()  # they wait until the prompt that they share is computed
    prices: dict[Request, Prices] = field(default_factory=dict)  # of those preempted


class Queues(NamedTuple):
    """What there is to decide on, in queue order."""

    running: Sequence[Request]  # without those that reach their length with a step in flight
    waiting: Sequence[Request]
    in_flight: Sequence[Batch]

    def by_class(self) -> tuple["Queues", "Queues"]:
        """Those of interactive requests and those of background requests; the order of the queue is in this order."""
        num_running, num_waiting = num_interactive(self.running), num_interactive(self.waiting)
        if num_running == len(self.running) and num_waiting == len(self.waiting):
            return self, Queues((), (), self.in_flight)
        interactive = Queues(self.running[:num_running], self.waiting[:num_waiting], self.in_flight)
        return interactive, Queues(self.running[num_running:], self.waiting[num_waiting:], self.in_flight)


class Decision(NamedTuple):
    """A call of `Scheduler.schedule`, what came of it, and the requests that ran before."""

    now: float
    budget: int | None
    drafts: Mapping[Request, int] | None
    background_budget: int | None
    was_running: Sequence[Request]
    plan: Plan
    batch: Batch | None


@dataclass(slots=True)
class StepBudget:
    """What is left to hand out while a plan is made, and to which requests it has been given."""

    queues: Queues
    tokens: int
    blocks: int
    promised_blocks: int = 0  # blocks that admitted prompts will still need; not for waiting requests
    promised_host_blocks: int = 0
    num_tokens: dict[Request, int] = field(default_factory=dict)
    new_blocks: dict[Request, int] = field(default_factory=dict)
    preempted: dict[Request, bool] = field(default_factory=dict)
    num_drafts: dict[Request, int] = field(default_factory=dict)
    admitted: dict[Request, Prefix] = field(default_factory=dict)
    shared_blocks: set[int] = field(default_factory=set)  # free blocks that those admitted share
    stops: list[Stop] = field(default_factory=list)
    behind_parent: list[Request] = field(default_factory=list)
    prices: dict[Request, Prices] = field(default_factory=dict)

    def give(self, request: Request, num_tokens: int, num_blocks: int) -> None:
        """Tokens to a request that has none yet, with the blocks that it needs for them."""
        self.tokens -= num_tokens
        self.blocks -= num_blocks
        self.num_tokens[request] = num_tokens
        self.new_blocks[request] = num_blocks

    def give_one_each(self, new_blocks: Mapping[Request, int], num_blocks: int) -> None:
        """A token to each of these, which have none yet; `num_blocks` are their blocks together."""
        self.tokens -= len(new_blocks)
        self.blocks -= num_blocks
        self.num_tokens.update(dict.fromkeys(new_blocks, 1))
        self.new_blocks.update(new_blocks)

    def give_drafts(self, request: Request, num_drafts: int, num_blocks: int) -> None:
        """More of them, for drafts, to one that has got its own."""
        self.tokens -= num_drafts
        self.blocks -= num_blocks
        self.num_tokens[request] += num_drafts
        self.new_blocks[request] += num_blocks
        self.num_drafts[request] = num_drafts

    def take_back(self, request: Request, num_freed: int) -> None:
        """What a request was given and what it held, as it is preempted."""
        self.tokens += self.num_tokens.pop(request, 0)
        self.blocks += self.new_blocks.pop(request, 0) + num_freed
