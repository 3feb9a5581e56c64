"""Gaps between the tokens of streams beside long prompts, by --target-itl-ms, in turns in one process.

`python tests/bench/gaps.py [smollm2] [--targets off auto 120] [--pairs 3]`: eight streams of 200 tokens, beside them
prompts of 1,500 tokens, as in peers_http.py's mix; then the throughput of a closed loop of a trace's requests.
"""

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Any

from load import closed_loop, running, serve_one

from splitfuse.client.bench.latency import percentile
from splitfuse.client.bench.traces import TraceRow, read_trace
from splitfuse.engine import AsyncEngine, EngineConfig

FIGURES = ("P50 gap ms", "P99 gap ms", "longest gap ms", "long TTFT ms", "tokens/s of a trace")


async def mix(engine: AsyncEngine, args: argparse.Namespace) -> list[float]:
    async def long(number: int) -> float:
        await asyncio.sleep(1.0 + args.every * number)
        return (await serve_one(engine, TraceRow(args.long_len, 4))).ttft

    streams = [serve_one(engine, TraceRow(32, args.stream_len)) for _ in range(8)]
    served, ttfts = await asyncio.gather(
        asyncio.gather(*streams), asyncio.gather(*(long(number) for number in range(args.num_long)))
    )
    gaps = sorted(gap for one in served for gap in one.itls)
    figures = [percentile(gaps, 50) or 0.0, percentile(gaps, 99) or 0.0, gaps[-1], statistics.median(ttfts)]
    return [1e3 * figure for figure in figures]


async def throughput(engine: AsyncEngine, rows: list[TraceRow], clients: int) -> float:
    start = time.monotonic()
    run = await closed_loop(engine, rows, clients)
    num_tokens = sum(one.prompt_len + one.output_len for one in run.served)
    return num_tokens / (time.monotonic() - start)


async def measure(args: argparse.Namespace, target: Any, rows: list[TraceRow]) -> list[float]:
    config = EngineConfig(model=args.model, enable_prefix_caching=False, target_itl_ms=target)
    async with running(config) as engine:
        await asyncio.gather(*(serve_one(engine, TraceRow(64 * i, 16)) for i in (1, 2, 6)))  # teaches it its costs
        figures = await mix(engine, args)
        return [*figures, await throughput(engine, rows, args.clients) if rows else 0.0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("model", nargs="?", default="smollm2", help="a file, a folder or a name")
    add("--targets", nargs="+", default=["off", "auto"])
    add("--pairs", type=int, default=3)
    add("--long-len", type=int, default=1500)
    add("--num-long", type=int, default=4)
    add("--every", type=float, default=2.0, help="seconds between long prompts")
    add("--stream-len", type=int, default=200)
    add("--trace", type=Path, help="of the throughput")
    add("--scale", type=float, default=0.25)
    add("--requests", type=int, default=24)
    add("--clients", type=int, default=8)
    args = parser.parse_args()
    rows = read_trace(args.trace, scale=args.scale, limit=args.requests) if args.trace else []
    found: dict[str, list[list[float]]] = {}
    for pair in range(args.pairs):
        for target in args.targets if pair % 2 == 0 else reversed(args.targets):
            value = target if target in ("auto", "off") else float(target)
            figures = asyncio.run(measure(args, value, rows))
            found.setdefault(target, []).append(figures)
            shown = ", ".join(f"{name} {figure:.1f}" for name, figure in zip(FIGURES, figures, strict=True))
            print(f"pair {pair} {target:>6}: {shown}", flush=True)
    base = found[args.targets[0]]
    for target, runs in found.items():
        ratios = [
            statistics.median(a / b for a, b in zip(x, y, strict=True) if b)
            for x, y in (
                ([run[i] for run in runs], [run[i] for run in base]) for i in range(len(FIGURES) if rows else 4)
            )
        ]
        shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in zip(FIGURES, ratios, strict=False))
        print(f"{target} / {args.targets[0]}: {shown}")


if __name__ == "__main__":
    main()
