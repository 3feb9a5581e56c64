"""`make soak MINUTES=60`: mixed traffic on a small pool with every option on; nothing may be lost, changed or leaked.

After each round of traffic tenants of unequal greed compete for as long; over all rounds each must get its share within
10 %. Then comes quiet, in which blocks, tasks, descriptors, threads and memory are counted, after a
full collection and with freed memory returned. Memory must not rise over the last half: its slope must be within
chance (permutation test, p >= 0.01), or below 1 MiB per hour.
"""

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import httpx
from served import SERVE, Served, Usage
from soak.canary import Canary
from soak.operations import OPERATIONS
from soak.tenants import TENANTS, Competition
from soak.trend import chance_of_slope, slope

# float32, in which an answer does not depend on the batch.
SETTINGS = (
    *("--max-model-len", "1024", "--num-kv-blocks", "66", "--max-num-seqs", "24", "--swap-space", "0.05"),
    *("--scheduling-policy", "fair", "--tenant-weights", json.dumps({t.name: t.weight for t in TENANTS})),
    *("--speculative-config", "ngram", "--max-results", "200", "--max-result-bytes", "8MiB", "--max-queue-size", "64"),
    *("--num-threads", "1", "--tool-call-parser", "hermes", "--dtype", "float32"),
)  # fmt: skip
NUM_CLIENTS = 12
LEAST_SLOPE = 1.0  # MiB per hour
LEAST_CHANCE = 0.01


@dataclass(frozen=True)
class Quiet:
    """Resources of the server between two rounds, `seconds` after the start."""

    seconds: float
    usage: Usage
    tasks: tuple[str, ...]


def main() -> int:
    """Run the campaign. Returns 1 if a check failed."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--round-seconds", type=float, default=15.0)
    parser.add_argument("--seed", type=int, default=int(time.time()) % 100_000)
    options = parser.parse_args()
    print(f"seed {options.seed}, {options.minutes:g} minutes", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        tasks = Path(folder, "tasks")
        program = (*SERVE[:-2], "-m", "soak.program")
        with Served(*SETTINGS, program=program, env={"SOAK_TASKS": str(tasks)}) as served:
            soak = Soak(served, tasks, rng=random.Random(options.seed))
            faults = soak.run(seconds=60 * options.minutes, round_seconds=options.round_seconds)
    print("\n".join(faults) or "nothing wrong")
    return int(bool(faults))


class Soak:
    """Soak of one server under traffic."""

    def __init__(self, served: Served, tasks: Path, *, rng: random.Random) -> None:
        self._served = served
        self._tasks = tasks
        self._rng = rng
        self._canary = Canary()
        self._competition = Competition()
        self._counts: Counter[str] = Counter()
        self._start = time.monotonic()

    def run(self, *, seconds: float, round_seconds: float) -> list[str]:
        """Run all rounds. Returns the faults found."""
        series: list[Quiet] = []
        while time.monotonic() < self._start + seconds:
            try:
                asyncio.run(self._round(round_seconds))
                asyncio.run(
                    self._competition.window(self._served.url, self._rng.getrandbits(32), seconds=round_seconds)
                )
                series.append(self._quiet())
            except AssertionError as exc:
                return [f"{exc}; the log ends: {self._served.log[-2000:]}"]
            last = series[-1]
            print(
                f"{last.seconds:6.0f} s: {self._counts.total()} operations, {self._canary.num_equal} canaries equal, "
                f"{last.usage.rss_mb:.1f} MiB, {last.usage.num_fds} descriptors, {last.usage.num_threads} threads, "
                f"{len(last.tasks)} tasks",
                flush=True,
            )
        print(f"{dict(self._counts)}; {self._story()}")
        told = ", ".join(f"{name} {part:.3f}" for name, part in self._competition.parts().items())
        print(f"service as multiples of shares: {told}, of {self._competition.service.total()}")
        return faults_of(series, self._served.log, rng=self._rng) + self._competition.faults()

    async def _round(self, seconds: float) -> None:
        """Run concurrent clients for `seconds`. Raises AssertionError."""
        deadline = time.monotonic() + seconds
        clients = (self._client(random.Random(self._rng.random()), deadline) for _ in range(NUM_CLIENTS))
        await asyncio.gather(*clients)

    async def _client(self, rng: random.Random, deadline: float) -> None:
        operations, weights = zip(*OPERATIONS, strict=True)
        while time.monotonic() < deadline:
            async with httpx.AsyncClient(base_url=self._served.url, timeout=120.0, trust_env=False) as client:
                for _ in range(rng.randint(1, 8)):
                    if rng.random() < 0.15:
                        await self._canary.ask(client, rng)
                    (operation,) = rng.choices(operations, weights)
                    await operation(client, rng)
                    self._counts[operation.__name__] += 1

    def _quiet(self) -> Quiet:
        """Return the resources with no request left and no connection open."""
        self._served.until_idle()
        self._tasks.unlink(missing_ok=True)
        self._served.signal(signal.SIGUSR2)
        deadline = time.monotonic() + 30
        while not self._tasks.exists():
            assert time.monotonic() < deadline, "the event loop does not answer"
            time.sleep(0.01)
        tasks = tuple(self._tasks.read_text().split("\n"))
        return Quiet(time.monotonic() - self._start, self._served.usage(), tasks)

    def _story(self) -> str:
        stats = self._served.stats()
        told = ("num_preemptions", "prefix_cache_queries", "prefix_cache_hits")
        return ", ".join(f"{name} {stats[name]}" for name in told)


def faults_of(series: list[Quiet], log: str, *, rng: random.Random) -> list[str]:
    """Return the faults that a series of quiet moments shows; its last half is the steady state."""
    half = series[len(series) // 2 :]
    faults = ["a traceback in the log: " + log[-2000:]] if "Traceback" in log else []
    # Lazily made threads and connections of the first rounds stay; the last half may add only a thread when
    # more grammars are compiled at once than ever before.
    for name, values, more in (
        ("descriptors", [quiet.usage.num_fds for quiet in half], 0),
        ("threads", [quiet.usage.num_threads for quiet in half], 2),
        ("tasks", [len(quiet.tasks) for quiet in half], 0),
    ):
        if values and min(values[-3:]) > min(values[:3]) + more:
            faults.append(f"{name} grew: {values}")
    if len(half) >= 8:
        times, sizes = [quiet.seconds / 3600 for quiet in half], [quiet.usage.rss_mb for quiet in half]
        rise, chances = slope(times, sizes), [chance_of_slope(times, sizes, rng=rng)]
        # A leak rises all the time; a single step, for something needed for the first time, is in one half only.
        for part in (slice(None, len(half) // 2), slice(len(half) // 2, None)):
            chances.append(chance_of_slope(times[part], sizes[part], rng=rng))
        chance = max(chances)
        shown = ", ".join(f"{share:.3f}" for share in chances)
        print(f"memory over the last half: {rise:+.2f} MiB per hour, by chance, over all and halves, p = {shown}")
        if rise > LEAST_SLOPE and chance < LEAST_CHANCE:
            faults.append(f"memory rises by {rise:.1f} MiB per hour (p = {chance:.4f}): {sizes}")
    return faults


if __name__ == "__main__":
    sys.exit(main())
