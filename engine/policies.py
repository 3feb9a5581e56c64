"""Policies: in what order requests queue, and in what order the running ones draw on a step's token budget."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from .request import Request

QueueOrder = Callable[[Request], Any]


def fcfs(request: Request) -> int:
    """First come, first served. A preempted request keeps its place."""
    return request.arrival_order


def priority(request: Request) -> tuple[int, int]:
    """Lower priority number first, then as they came."""
    return (request.params.priority, request.arrival_order)


QUEUE_ORDERS: dict[str, QueueOrder] = {"fcfs": fcfs, "priority": priority}


@dataclass(frozen=True)
class BatchingPolicy:
    """Who shares a step's budget, and in which order. `share` sees the running requests in queue order."""

    name: str
    share: Callable[[Sequence[Request]], Iterable[Request]]


def decodes_then_chunks(running: Sequence[Request]) -> list[Request]:
    """Every decode first, so that no prompt delays a token; then prompt chunks fill the rest, oldest first."""
    return sorted(running, key=lambda request: request.num_uncomputed_tokens > 1)


# Dynamic SplitFuse: Holmes et al. 2024, DeepSpeed-FastGen, arXiv 2401.08671.
SPLITFUSE = BatchingPolicy("splitfuse", share=decodes_then_chunks)

BATCHING_POLICIES = {policy.name: policy for policy in (SPLITFUSE,)}
