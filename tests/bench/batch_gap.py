"""Cost of a batch for other users: gaps between tokens of streams, with and without a batch behind them, by turns.

`python tests/bench/batch_gap.py [--results FILE] [--model M]`: a server process with 4 streams in a closed loop, 40 s.
Goal: the P99 gap beside the batch is at most 1.2 times that without.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from typing import Any

import httpx
import openai

from splitfuse.client.bench.latency import percentile

PROMPT = "Once upon a time there was a little girl who had a dog. " * 4
LINES = 5000


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default=None)
    parser.add_argument("--results", default="memory")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--turns", type=int, default=4, help="pairs of a turn without and one with a batch")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a turn")
    return parser.parse_args()


async def gaps_of(client: httpx.AsyncClient, args: argparse.Namespace) -> list[float]:
    """Return the seconds between tokens that clients see."""
    end, gaps = time.perf_counter() + args.seconds, list[float]()

    async def one(number: int) -> None:
        while time.perf_counter() < end:
            body = {"prompt": f"{number} {PROMPT}", "max_tokens": 100, "ignore_eos": True, "stream": True}
            async with client.stream("POST", "/generate", json=body) as response:
                last = None
                async for line in response.aiter_lines():
                    if line.startswith("event: token"):
                        now = time.perf_counter()
                        gaps.extend([] if last is None else [now - last])
                        last = now

    await asyncio.gather(*(one(number) for number in range(args.streams)))
    return gaps


async def batch_of(client: openai.AsyncOpenAI) -> Any:
    body = {"max_tokens": 64, "ignore_eos": True}
    lines = [
        {"custom_id": str(i), "method": "POST", "url": "/generate", "body": {"prompt": f"{i}. {PROMPT}", **body}}
        for i in range(LINES)
    ]
    file = await client.files.create(file="\n".join(map(json.dumps, lines)).encode(), purpose="batch")
    endpoint: Any = "/generate"
    return await client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h")


async def leaves(client: openai.AsyncOpenAI, batch_id: str, status: str) -> None:
    while (await client.batches.retrieve(batch_id)).status == status:  # noqa: ASYNC110  a batch can only be polled
        await asyncio.sleep(0.05)


async def measure(url: str, args: argparse.Namespace) -> None:
    every: tuple[list[float], list[float]] = ([], [])
    async with (
        httpx.AsyncClient(base_url=url, timeout=60) as client,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as batches,
    ):
        await gaps_of(client, args)  # teaches the engine the cost of steps
        print("       without, ms: P50     P99   beside: P50     P99   P99 ratio")
        for _ in range(args.turns):
            alone = await gaps_of(client, args)
            batch = await batch_of(batches)
            await leaves(batches, batch.id, "validating")
            beside = await gaps_of(client, args)
            batch = await batches.batches.cancel(batch.id)
            show(f"{batch.request_counts.completed} lines", alone, beside)
            for gaps, more in zip(every, (alone, beside), strict=True):
                gaps += more
            await leaves(batches, batch.id, "cancelling")
    show("all", *every)


def show(name: str, alone: list[float], beside: list[float]) -> None:
    shown = [1e3 * (percentile(sorted(gaps), share) or 0.0) for gaps in (alone, beside) for share in (50, 99)]
    print("{:<12}{:>11.2f} {:>7.2f} {:>13.2f} {:>7.2f} {:>11.2f}".format(name, *shown, shown[3] / shown[1]))


def main() -> None:
    args = parse()
    command = [sys.executable, "-m", "splitfuse.server", "serve", "--port", "0", "--results", args.results]
    command += [args.model] if args.model else []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            words = (word for line in server.stdout for word in line.split())
            url = next(word for word in words if word.endswith("/generate")).removesuffix("/generate")
            asyncio.run(measure(url, args))
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
