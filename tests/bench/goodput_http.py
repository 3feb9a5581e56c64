"""Goodput over HTTP beside peers: requests per second within both goals, at rising rates of arrival.

`python tests/bench/goodput_http.py TRACE.csv --real '{"splitfuse": FILE, "llama-server": FILE}' --peers llama-server`:
our server in queue order, our server with deadlines, and each peer take turns at every rate. Goals, counts and lengths
are goodput.py's; what has not ended `--grace` seconds after the last arrival has missed its goals. `--save-result FILE`
adds the figures to the file's, so that rates can be measured one after the other.
"""

import argparse
import asyncio
import dataclasses
import json
import random
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
from peers_http import OURS, REAL_VOCAB_SIZE, Prompts, Server, where

from splitfuse.client.bench.cli import READ_TIMEOUT_S
from splitfuse.client.bench.latency import Outcome
from splitfuse.client.bench.openai_stream import Target, measure
from splitfuse.client.bench.traces import TraceRow, read_trace
from splitfuse.client.bench.workload import LoadRequest, arrivals

QUEUE_ORDER, DEADLINES = "queue order", "deadlines"


def rows_of(args: argparse.Namespace, rate: float) -> list[TraceRow]:
    """Return the trace's next requests, at random times of the next seconds."""
    count = max(2, round(rate * args.seconds))
    rows = read_trace(args.trace, scale=args.scale, limit=count)
    times = arrivals(count, rate=rate, burstiness=1.0, source=random.Random(args.seed))
    return [dataclasses.replace(row, arrival=at) for row, at in zip(rows, times, strict=True)]


async def serve(server: Server, model: str, rows: list[TraceRow], args: argparse.Namespace) -> list[Outcome | None]:
    """Send the rows at their times. Returns None for a request that failed, or had not ended after the grace."""
    target = Target("/v1/completions", model, ignore_eos=True)
    prompts = Prompts(REAL_VOCAB_SIZE, f"{args.seed} {rows[0]}")
    demands = [LoadRequest(prompts.take(row.prompt_len), row.prompt_len, row.output_len, 0.0) for row in rows]
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    timeout = httpx.Timeout(READ_TIMEOUT_S, pool=None)
    async with httpx.AsyncClient(base_url=server.url, timeout=timeout, limits=limits) as http:
        for length in (64, 128, 384):  # teaches the server its costs
            await measure(http, target, LoadRequest(prompts.take(length), length, 16, 0.0))
        start = time.perf_counter()

        async def one(row: TraceRow, demand: LoadRequest) -> Outcome:
            assert row.arrival is not None
            await asyncio.sleep(start + row.arrival - time.perf_counter())
            return await measure(http, target, demand)

        tasks = [asyncio.create_task(one(row, demand)) for row, demand in zip(rows, demands, strict=True)]
        _, late = await asyncio.wait(tasks, timeout=(rows[-1].arrival or 0.0) + args.grace)
        for task in late:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    return [one if isinstance(one, Outcome) and one.error is None else None for one in ended]


def figures(outcomes: list[Outcome | None], rate: float, args: argparse.Namespace) -> dict[str, float]:
    """Return the goodput, and the shares of both goals."""
    ended = [one for one in outcomes if one is not None]
    count = len(outcomes)
    return {
        "rate": rate,
        "goodput": rate * sum(one.meets({"ttft": args.ttft_ms, "tpot": args.itl_ms}) for one in ended) / count,
        "ttft_share": sum(one.meets({"ttft": args.ttft_ms}) for one in ended) / count,
        "itl_share": sum(one.meets({"tpot": args.itl_ms}) for one in ended) / count,
        "requests": count,
    }


def start(args: argparse.Namespace, stack: ExitStack) -> dict[str, Server]:
    """Start all servers, and stop them by SIGSTOP."""
    goals = ["--ttft-ms", str(args.ttft_ms), "--itl-ms", str(args.itl_ms)]
    ways = {QUEUE_ORDER: (OURS, ["--target-itl-ms", "off"]), DEADLINES: (OURS, goals)}
    servers: dict[str, Server] = {}
    for way, (peer, flags) in (ways | {peer: (peer, []) for peer in args.peers}).items():
        server = servers[way] = stack.enter_context(Server(peer, Path(args.real[peer]), flags))
        server.wait_until_ready()
        server.rest()
    return servers


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("trace", type=Path)
    add("--real", type=json.loads, required=True, help="files or folders of SmolLM2's weights, by peer")
    add("--peers", nargs="*", default=[])
    add("--rates", type=float, nargs="+", default=[2.0, 4.0, 6.0], help="requests per second")
    add("--seconds", type=float, default=60.0, help="of arrivals at each rate")
    add("--grace", type=float, default=10.0, help="seconds after the last arrival")
    add("--scale", type=float, default=0.25, help="of lengths")
    add("--ttft-ms", type=int, default=2000)
    add("--itl-ms", type=int, default=100)
    add("--seed", type=int, default=1)
    add("--save-result", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    args = parse()
    found: dict[str, Any] = {"figures": {}}
    if args.save_result and args.save_result.exists():
        found = json.loads(args.save_result.read_text())
    found["where"] = where(f"SmolLM2-135M-Instruct over HTTP; {args.trace.stem}, lengths times {args.scale}")
    found |= {"trace": args.trace.stem, "scale": args.scale, "ttft_ms": args.ttft_ms, "itl_ms": args.itl_ms}
    with ExitStack() as stack:
        servers = start(args, stack)
        for rate in args.rates:
            rows = rows_of(args, rate)
            for way, server in servers.items():
                server.wake()
                outcomes = asyncio.run(serve(server, args.real[server.peer], rows, args))
                server.rest()
                row = figures(outcomes, rate, args)
                found["figures"].setdefault(way, []).append(row)
                shown = ", ".join(f"{name} {value:.2f}" for name, value in row.items())
                print(f"{way:>12}: {shown}", flush=True)
                if args.save_result:
                    args.save_result.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
