"""Delay and throughput of two servers behind HAProxy, beside one plain server.

    PYTHONPATH=tests/campaigns:tests/support:tests/server python -P tests/bench/balancer.py [--no-ray]

The four others: docker/haproxy.cfg before that server alone, docker/haproxy.cfg before two servers on one
PostgreSQL, `serve --replicas 2` on one PostgreSQL, and that on a Ray of its own. Each stream is read twice at once,
from its own server and through HAProxy: the delay is between the two arrivals of an event. Then as many streams
are read in one way alone, by turns. Needs haproxy and postgresql of the distribution, and Ray (pip install ray).
"""

import argparse
import asyncio
import contextlib
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import httpx
from balanced.__main__ import SETTINGS
from balanced.processes import Haproxy
from postgres_server import PostgresServer
from replicas.__main__ import command_line, num_up, servers
from served import Served

BODY = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}


@dataclass
class Way:
    """Way to a stream; `owners`: clients for direct reads, by the beginning of the stream's id."""

    name: str
    client: httpx.AsyncClient
    owners: Mapping[str, httpx.AsyncClient]

    def owner(self, seq_id: str) -> httpx.AsyncClient:
        """Return the client of the stream's own server."""
        return next(client for tag, client in self.owners.items() if seq_id.startswith(tag))


def client(url: str) -> httpx.AsyncClient:
    """Return a client without a limit of connections."""
    return httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, limits=httpx.Limits(max_connections=None))


async def arrivals(reader: httpx.AsyncClient, seq_id: str) -> list[float]:
    """Return the arrival times of a stream's events."""
    found: list[float] = []
    async with reader.stream("GET", f"/result/{seq_id}/stream") as response:
        async for part in response.aiter_raw():
            found += [time.perf_counter()] * part.count(b"\n\n")
    return found


async def submit(way: Way, num_tokens: int) -> str:
    """Submit a job. Returns its id."""
    answer = await way.client.post("/generate", json={**BODY, "max_tokens": num_tokens})
    return str(answer.json()["seq_id"])


async def delays(way: Way, num_streams: int, num_tokens: int) -> list[float]:
    """Return the delays of all events in seconds, beside direct reads, sorted."""
    ids = [await submit(way, num_tokens) for _ in range(num_streams)]
    readers = [(reader, seq_id) for seq_id in ids for reader in (way.owner(seq_id), way.client)]
    read = await asyncio.gather(*(arrivals(*reader) for reader in readers))
    pairs = zip(read[::2], read[1::2], strict=True)
    return sorted(later - sooner for first, second in pairs for sooner, later in zip(first, second, strict=True))


async def rate(way: Way, num_streams: int, num_tokens: int) -> float:
    """Return tokens per second over all streams."""
    start = time.perf_counter()
    ids = await asyncio.gather(*(submit(way, num_tokens) for _ in range(num_streams)))
    await asyncio.gather(*(arrivals(way.client, seq_id) for seq_id in ids))
    return num_streams * num_tokens / (time.perf_counter() - start)


async def measure(plain: Way, ways: list[Way], num_tokens: int, num_turns: int) -> None:
    """Print a row per way and number of streams."""
    for way in (plain, *ways):
        await rate(way, 8, 50)
    for num_streams in (1, 8, 64):
        late = {way.name: await delays(way, num_streams, num_tokens) for way in ways}
        rates: dict[str, list[float]] = {way.name: [] for way in (plain, *ways)}
        for turn in range(num_turns):
            for way in (plain, *ways)[:: -1 if turn % 2 else 1]:
                rates[way.name].append(await rate(way, num_streams, num_tokens))
        print(f"{num_streams} streams: {plain.name} {statistics.median(rates[plain.name]):.0f} tokens/s")
        for way in ways:
            found, shares = late[way.name], [a / b for a, b in zip(rates[way.name], rates[plain.name], strict=True)]
            print(
                f"  {way.name}: {1e3 * statistics.median(found):.2f} ms later,"
                f" p99 {1e3 * found[len(found) * 99 // 100]:.2f};"
                f" {statistics.median(rates[way.name]):.0f} tokens/s,"
                f" {statistics.median(shares):.2f} ({min(shares):.2f} to {max(shares):.2f}) of {plain.name}",
                flush=True,
            )


@contextlib.contextmanager
def opened(postgres: PostgresServer, *, has_ray: bool) -> Iterator[list[Way]]:
    """Yield the plain server, then all others."""
    with contextlib.ExitStack() as stack:
        served = stack.enter_context(Served(*SETTINGS))
        plain = Way("one server", client(served.url), {"": client(served.url)})
        alone = stack.enter_context(Haproxy(served.port, served.port))
        ways = [plain, Way("HAProxy before it", client(alone.url), plain.owners)]
        shared = ("--results", postgres.database())
        first, second = (stack.enter_context(Served(*SETTINGS, *shared, "--id-tag", tag)) for tag in ("a-", "b-"))
        both = stack.enter_context(Haproxy(first.port, second.port))
        ways.append(Way("two servers", client(both.url), {"a-": client(first.url), "b-": client(second.url)}))
        known: set[int] = set()
        for name, args in (("--replicas 2", ()), ("--replicas 2 on Ray", ("--ray-address", "local")))[: 1 + has_ray]:
            replicas = Served(*SETTINGS, "--results", postgres.database(), "--replicas", "2", *args)
            stack.enter_context(replicas)
            while num_up(replicas) < 2:
                time.sleep(0.2)
            ours = {f"{owner}-": [pid for pid in servers(owner) if pid not in known][-1] for owner in ("r0", "r1")}
            known.update(pid for owner in ("r0", "r1") for pid in servers(owner))
            ways.append(Way(name, client(replicas.url), {tag: client(address(pid)) for tag, pid in ours.items()}))
        yield ways


def address(pid: int) -> str:
    """Return a replica's address from its command line."""
    words = command_line(pid)
    return f"http://{words[words.index('--host') + 1]}:{words[words.index('--port') + 1]}"


def main() -> None:
    """Start all servers and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--no-ray", action="store_true")
    options = parser.parse_args()
    postgres = PostgresServer()
    postgres.start()
    try:
        with opened(postgres, has_ray=not options.no_ray) as (plain, *ways):
            asyncio.run(measure(plain, ways, options.tokens, options.turns))
    finally:
        postgres.remove()


if __name__ == "__main__":
    main()
