"""What HAProxy (docker/haproxy.cfg) adds to a token, and what it takes of the throughput.

    PYTHONPATH=tests/campaigns python -P tests/bench/balancer.py

Each stream is read twice at once, from the server and through HAProxy: the delay is between the arrivals of one event.
Then as many streams are read in one way alone, by turns.
"""

import argparse
import asyncio
import statistics
import time

import httpx
from balanced.processes import Haproxy
from served import Served

BODY = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}


async def arrivals(client: httpx.AsyncClient, seq_id: str) -> list[float]:
    """When each event of a stream came."""
    found: list[float] = []
    async with client.stream("GET", f"/result/{seq_id}/stream") as response:
        async for part in response.aiter_raw():
            found += [time.perf_counter()] * part.count(b"\n\n")
    return found


async def submit(client: httpx.AsyncClient, num_tokens: int) -> str:
    """The id of a new job."""
    answer = await client.post("/generate", json={**BODY, "max_tokens": num_tokens})
    return str(answer.json()["seq_id"])


async def delays(
    plain: httpx.AsyncClient, proxied: httpx.AsyncClient, num_streams: int, num_tokens: int
) -> list[float]:
    """Seconds by which each event came later through HAProxy."""
    ids = [await submit(plain, num_tokens) for _ in range(num_streams)]
    read = await asyncio.gather(*(arrivals(client, seq_id) for seq_id in ids for client in (plain, proxied)))
    pairs = zip(read[::2], read[1::2], strict=True)
    return [later - sooner for first, second in pairs for sooner, later in zip(first, second, strict=True)]


async def rate(client: httpx.AsyncClient, num_streams: int, num_tokens: int) -> float:
    """Tokens a second over all streams."""
    start = time.perf_counter()
    ids = await asyncio.gather(*(submit(client, num_tokens) for _ in range(num_streams)))
    await asyncio.gather(*(arrivals(client, seq_id) for seq_id in ids))
    return num_streams * num_tokens / (time.perf_counter() - start)


async def measure(direct: str, proxied: str, num_tokens: int) -> None:
    """Print a row for each number of streams."""
    limits = httpx.Limits(max_connections=None)
    clients = [httpx.AsyncClient(base_url=url, timeout=60, trust_env=False, limits=limits) for url in (direct, proxied)]
    await asyncio.gather(*(rate(client, 4, 20) for client in clients))
    for num_streams in (1, 8, 64):
        late = sorted(await delays(clients[0], clients[1], num_streams, num_tokens))
        rates: list[list[float]] = [[], []]
        for turn in (0, 1, 1, 0):
            rates[turn].append(await rate(clients[turn], num_streams, num_tokens))
        plain, through = map(statistics.mean, rates)
        delay = f"{1e3 * statistics.median(late):.2f} ms later, p99 {1e3 * late[len(late) * 99 // 100]:.2f}"
        print(
            f"{num_streams} streams: {delay}; {plain:.0f} tokens/s, HAProxy {through:.0f}, {through / plain:.0%}",
            flush=True,
        )
    for client in clients:
        await client.aclose()


def main() -> None:
    """Start both and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=100)
    options = parser.parse_args()
    with Served("--dtype", "float32", "--no-request-log") as served, Haproxy(served.port, served.port) as haproxy:
        asyncio.run(measure(served.url, haproxy.url, options.tokens))


if __name__ == "__main__":
    main()
