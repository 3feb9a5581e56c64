"""Instrument's own limits: its processes and their time, and the server's own figures to hold beside its figures."""

import json
import math
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import ExitStack

import httpx

from .latency import Outcome

BUSY_SHARE = 0.8  # of a core; above it gaps are the instrument's as much as the server's
_GAPS = re.compile(r'inter_token_latency_seconds_bucket\{[^}]*le="([^"]+)"[^}]*\} (\S+)')
_WORKER = "import sys; from splitfuse.client.bench.cli import work; work(sys.argv[1:])"


class WorkerError(Exception):
    """Error of a worker, in its words."""


def run_workers(argv: Sequence[str], num_workers: int) -> tuple[list[Outcome], float, float]:
    """Have processes send the requests, all from one moment on.

    Returns outcomes in order, the longest run's seconds and the busiest worker's share of a core.
    """
    outcomes: dict[int, Outcome] = {}
    longest = busiest = 0.0
    with ExitStack() as stack:
        workers = []
        for number in range(num_workers):
            command = [sys.executable, "-c", _WORKER, *argv, "--share", f"{number}/{num_workers}"]
            pipe = subprocess.PIPE
            workers.append(
                stack.enter_context(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
            )
            stack.callback(workers[-1].kill)
        for worker in workers:
            assert worker.stdout is not None
            if worker.stdout.readline() != "ready\n":
                raise WorkerError(worker.communicate()[1].strip())
        for worker in workers:
            assert worker.stdin is not None
            print("go", file=worker.stdin, flush=True)
        for number, worker in enumerate(workers):
            report, errors = worker.communicate()
            if worker.returncode:
                raise WorkerError(errors.strip())
            duration, busy, records = json.loads(report)
            longest, busiest = max(longest, duration), max(busiest, busy)
            outcomes |= {number + i * num_workers: Outcome(**record) for i, record in enumerate(records)}
    return [outcomes[index] for index in sorted(outcomes)], longest, busiest


async def server_gaps(http: httpx.AsyncClient) -> Mapping[float, float]:
    """Return the server's histogram of gaps between tokens, cumulative by seconds; empty if it shows none."""
    try:
        text = (await http.get("/metrics")).text
    except httpx.HTTPError:
        return {}
    counts = defaultdict[float, float](float)
    for seconds, count in _GAPS.findall(text):
        counts[float(seconds)] += float(count)
    return counts


def median_gap_ms(before: Mapping[float, float], after: Mapping[float, float]) -> float | None:
    """Return the median of the gaps between two looks, linear within its bucket; None without gaps."""
    counts = {seconds: after[seconds] - before.get(seconds, 0.0) for seconds in sorted(after)}
    total = counts.get(math.inf, 0.0)
    lower = below = 0.0
    for seconds, count in counts.items():
        if count >= total / 2 > below and seconds < math.inf:
            return 1000 * (lower + (seconds - lower) * (total / 2 - below) / (count - below))
        lower, below = seconds, count
    return None
