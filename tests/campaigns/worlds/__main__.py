"""`make worlds-all SECONDS=600`: small worlds of the scheduler, whole; those of durable results for 0.4 of the time;
then large ones of the scheduler, until the time is over.

Every state is visited once and checked. The counts of whole worlds are the same each time. A failure prints its
shortest path as a test for the file test_every_small_world.py of either.
"""

import argparse
import gc
import logging
import sys
import time
from multiprocessing import get_context

from journal_world import JOURNALS
from small_world_search import Broken, Search, Visited
from small_world_settings import HYBRID, LARGE, WHOLE

SMALL = WHOLE | HYBRID
RESULTS = {f"journal {name}": world for name, world in JOURNALS.items()}
PARTS = ((SMALL, float("inf")), (RESULTS, 0.4), (LARGE, 1.0))  # with the share of the time at which each ends
WORLDS = SMALL | RESULTS | LARGE


def main() -> int:
    """Visit the worlds. Returns 1 if a rule was broken."""
    parser = argparse.ArgumentParser(prog="worlds", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("names", nargs="*", help="only these worlds")
    options = parser.parse_args()
    begin, names = time.monotonic(), options.names or [*WORLDS]
    results: list[Visited] = []
    failures = 0
    with get_context("fork").Pool(options.processes, _prepare) as pool:
        for worlds, share in PARTS:
            part = [name for name in names if name in worlds]
            rounds = [-(-(len(part) - place) // options.processes) for place in range(len(part))]
            jobs = [(name, begin + share * options.seconds, own) for name, own in zip(part, rounds, strict=True)]
            for name, result in pool.imap_unordered(_visit, jobs, chunksize=1):
                print(f"{name}: {result}", flush=True)
                if isinstance(result, Visited):
                    results.append(result)
                else:
                    failures += 1
    total = Visited(
        num_states=sum(visited.num_states for visited in results),
        num_edges=sum(visited.num_edges for visited in results),
        depth=max([visited.depth for visited in results], default=0),
        num_open=sum(visited.num_open for visited in results),
        longest_wait=max([visited.longest_wait for visited in results], default=0),
        seconds=time.monotonic() - begin,
    )
    print(f"{total}; {failures} broken")
    return int(failures > 0)


def _prepare() -> None:
    logging.disable(logging.CRITICAL)  # failures are part of every world


def _visit(job: tuple[str, float, int]) -> tuple[str, Visited | str]:
    """Visit a world for its part of the time until `end`, in which a process visits `num_rounds` worlds."""
    name, end, num_rounds = job
    (gc.enable if name.startswith("journal ") else gc.disable)()  # of a million copied states none is a cycle
    try:
        search = Search(WORLDS[name], name.removeprefix("journal "))
        return name, search.run(seconds=(end - time.monotonic()) / num_rounds)
    except Broken as broken:
        return name, str(broken)


if __name__ == "__main__":
    sys.exit(main())
