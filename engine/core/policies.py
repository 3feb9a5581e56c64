"""Policies: which requests share a step's token budget (batching), and in what order requests queue (scheduling).

A batching policy is data: rounds of sources. A step is the first round that gives any request tokens. The sources of a
round draw on one budget, one after the other. So every other policy differs from SplitFuse in one line.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any

from .request import Request

QueueOrder = Callable[[Request], Any]


def fcfs(request: Request) -> tuple[bool, int]:
    """First come, first served, background requests last. A preempted request keeps its position."""
    return (request.is_background, request.arrival_order)


def priority(request: Request) -> tuple[bool, int, int]:
    """Lower priority number first, then first come, first served; background requests last."""
    return (request.is_background, request.params.priority, request.arrival_order)


def num_interactive(requests: Sequence[Request]) -> int:
    """Count the interactive requests of a list in queue order: they come before the background ones."""
    if not requests or not requests[-1].is_background:
        return len(requests)
    return bisect_left(requests, True, key=attrgetter("is_background"))


# "fair" queues in order of arrival too; fair_queue.TokenCounters then decides which waiting request is next.
QUEUE_ORDERS: dict[str, QueueOrder] = {"fcfs": fcfs, "priority": priority, "fair": fcfs}


class Source(Enum):
    """Source of a step's tokens. Requests of the first two sources run already; all are in queue order."""

    DECODES = "one token each"
    CHUNKS = "prompts in chunks"
    WAITING = "the waiting queue"


def by_source(running: Iterable[Request]) -> dict[Source, list[Request]]:
    """Split running requests into decodes and requests with a prompt to compute."""
    decodes: list[Request] = []
    chunks: list[Request] = []
    for request in running:
        num_uncomputed = len(request.token_ids) + request.num_output_placeholders - request.num_computed_tokens
        (decodes if num_uncomputed == 1 else chunks).append(request)
    return {Source.DECODES: decodes, Source.CHUNKS: chunks}


@dataclass(frozen=True)
class BatchingPolicy:
    """Rule for the requests that share a step.

    `whole_prompts`: a prompt is never cut; a prompt longer than the budget runs alone.
    `admits`: True if waiting requests may join the running ones.
    """

    name: str
    rounds: tuple[tuple[Source, ...], ...]
    whole_prompts: bool = False
    admits: Callable[[Sequence[Request]], bool] = lambda running: True


_POLICIES = (
    # Every decode, then prompt chunks fill the rest of the same budget: passes of constant size, and no prompt delays a
    # token. Dynamic SplitFuse: Holmes et al. 2024, DeepSpeed-FastGen, arXiv 2401.08671.
    BatchingPolicy("splitfuse", rounds=((Source.DECODES, Source.CHUNKS, Source.WAITING),)),
    # Whole prompts go before decodes. Orca (Yu et al. 2022), vLLM 0.2 (Kwon et al. 2023).
    BatchingPolicy("prefill_first", rounds=((Source.CHUNKS, Source.WAITING), (Source.DECODES,)), whole_prompts=True),
    # Prompts only in steps without decodes.
    BatchingPolicy("decode_first", rounds=((Source.DECODES,), (Source.CHUNKS, Source.WAITING))),
    # A batch runs to its end before the next starts. FasterTransformer, `generate` with a batch.
    BatchingPolicy(
        "static",
        rounds=((Source.CHUNKS, Source.WAITING), (Source.DECODES,)),
        whole_prompts=True,
        admits=lambda running: all(r.num_output_tokens + r.num_output_placeholders < 2 for r in running),
    ),
)
BATCHING_POLICIES = {policy.name: policy for policy in _POLICIES}
