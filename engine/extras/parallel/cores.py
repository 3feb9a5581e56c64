"""Cores that a rank computes on. Imports no torch."""

import os
from collections.abc import Sequence
from pathlib import Path

_NODES = Path("/sys/devices/system/node")


def numa_nodes(folder: Path = _NODES) -> list[set[int]]:
    """Return the cores of each NUMA node; one node of all cores if the system does not list any."""
    lists = sorted(folder.glob("node[0-9]*/cpulist"), key=lambda path: int(path.parent.name[4:]))
    nodes = [_cores(path.read_text("utf-8")) for path in lists]
    return [node for node in nodes if node] or [set(range(os.cpu_count() or 1))]


def _cores(text: str) -> set[int]:
    """Parse the kernel's list format: 0-3,8,10-11."""
    spans = [part.partition("-") for part in text.strip().split(",") if part]
    return {core for first, _, last in spans for core in range(int(first), int(last or first) + 1)}


def cores_of_rank(rank: int, size: int, *, usable: set[int], nodes: Sequence[set[int]]) -> list[int]:
    """Return the rank's share of the usable cores, in as few nodes as possible; all cores if there are too few."""
    node_of = {core: number for number, node in enumerate(nodes) for core in node}
    ordered = sorted(usable, key=lambda core: (node_of.get(core, len(nodes)), core))
    if len(ordered) < size:
        return ordered
    return ordered[len(ordered) * rank // size : len(ordered) * (rank + 1) // size]


def bind(rank: int, size: int) -> None:
    """Pin this thread, and the threads that it starts, to its rank's cores.

    Rank 0 shares its process with HTTP and, in scripts, with other code: it is pinned only on several NUMA nodes.
    """
    nodes = numa_nodes()
    if rank or len(nodes) > 1:
        os.sched_setaffinity(0, cores_of_rank(rank, size, usable=os.sched_getaffinity(0), nodes=nodes))
