"""`make replicas`: `serve --replicas 2` on a Ray of its own and one PostgreSQL; each replica is killed once.

Jobs are submitted, polled, streamed and resumed through one port. No job answered with 202 may be lost, no event
be missing or come twice, every result must equal an undisturbed server's, and SIGTERM must leave no process.
Needs haproxy and postgresql of the distribution, and Ray (pip install ray) unless --no-ray.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import httpx
from balanced.__main__ import NUM_BODIES, SETTINGS, body, tell, undisturbed, until
from balanced.reader import Reader
from postgres_server import PostgresServer
from served import Served


def main() -> int:
    """Run the campaign. Returns 1 if anything was lost, repeated, changed or left over."""
    parser = argparse.ArgumentParser(prog="replicas", description=__doc__)
    parser.add_argument("--jobs", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=300)
    parser.add_argument("--no-ray", action="store_true", help="replicas are processes of this machine")
    options = parser.parse_args()
    with Served(*SETTINGS) as served:
        expected = [undisturbed(served, body(number, options.tokens)) for number in range(NUM_BODIES)]
    postgres = PostgresServer()
    postgres.start()
    try:
        shared = ("--results", postgres.database(), "--results-lease", "3", "--drain-timeout", "10")
        ray = () if options.no_ray else ("--ray-address", "local")
        with Served(*SETTINGS, *shared, "--replicas", "2", *ray) as replicas:
            faults = asyncio.run(campaign(replicas, options.jobs, options.tokens, expected))
            faults += ended(replicas)
    finally:
        postgres.remove()
    print("\n".join(faults) or "nothing wrong")
    return 1 if faults else 0


async def campaign(served: Served, num_jobs: int, num_tokens: int, expected: list[list[int]]) -> list[str]:
    """Run all jobs. Returns the faults found."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=served.url, timeout=80, trust_env=False, limits=limits) as client:
        await until(lambda: num_up(served) == 2)
        readers = [Reader(client, number, body(number % NUM_BODIES, num_tokens)) for number in range(num_jobs)]
        tasks = [asyncio.create_task(reader.run()) for reader in readers]
        await until(lambda: all(reader.seq_id for reader in readers))
        await disturb(served)
        await asyncio.gather(*tasks)
    tell(readers)
    changed = [
        f"job {reader.number} has other tokens than without a disturbance"
        for reader in readers
        if reader.result.get("token_ids") != expected[reader.number % NUM_BODIES]
    ]
    return [fault for reader in readers for fault in reader.faults()] + changed


async def disturb(served: Served) -> None:
    """Send kill -9 to the server of r0, and once r0 is back, to r1's."""
    for name in ("r0", "r1"):
        (killed,) = servers(name)
        os.kill(killed, signal.SIGKILL)
        await until(lambda name=name, killed=killed: servers(name) not in ([], [killed]) and num_up(served) == 2)
        print(f"killed {name}, and it is back", flush=True)


def ended(served: Served) -> list[str]:
    """Send SIGTERM. Returns faults: a bad exit code, processes that are left."""
    served.signal(signal.SIGTERM)
    code = served.wait(60.0)
    left = servers("r0") + servers("r1")
    return ([] if code == 0 else [f"SIGTERM ended with exit code {code}"]) + [f"process {pid} is left" for pid in left]


def servers(name: str) -> list[int]:
    """Return the processes that serve as the replica of this name, which their environment has."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words, settings = ((folder / what).read_bytes().split(b"\0") for what in ("cmdline", "environ"))
            if f"SPLITFUSE_REPLICA={name}".encode() in settings and b"serve" in words:  # no worker of it
                found.append(int(folder.name))
        except OSError:
            continue  # a process that has ended, or is another user's
    return found


def num_up(served: Served) -> int:
    """Return the number of ready replicas by HAProxy's /metrics."""
    try:
        text = httpx.get(served.url + "/metrics", timeout=10, trust_env=False).text
    except httpx.HTTPError:
        return 0
    return sum(line.endswith(" 1.0") for line in text.splitlines() if "replica_up{" in line)


if __name__ == "__main__":
    sys.exit(main())
