"""Policies in FastGen's experiment: closed loops of clients, SplitFuse beside a rival policy, on a real model.

`python tests/bench/policies.py [--rival prefill_first] [--prompt-len 325 --output-len 8] [--clients 1 2 4 8 16]`
Lengths are Normal(mean, 0.3 mean); the service level is a quarter of this machine's own solo rates (Holmes et al. 2024
used 512 prompt tokens/s and 4 tokens/s on an A100). Per number of clients the policies take turns. Unless a budget is
given, SplitFuse gets the service level's gap as its latency target, and the rival, whose prompts are never cut, 2048.
"""

import argparse
import asyncio
import tempfile
from typing import Any

from load import Run, closed_loop, model_folder, running, serve_one

from splitfuse.client.bench.slo import ServiceLevel, effective_throughput
from splitfuse.client.bench.traces import TraceRow
from splitfuse.client.bench.workload import normal_rows
from splitfuse.engine import AsyncEngine, EngineConfig

_POINT = "{:>7} {:>14} {:>6.2f} {:>9.2f} {:>6.1f}ms {:>6.1f}ms {:>6.1f}ms {:>6.2f}s {:>6.2f}s {:>7.0%}"


async def solo_level(engine: AsyncEngine, prompt_len: int) -> ServiceLevel:
    """Return a service level: a quarter of the prompt rate and token rate of a request alone, medians of five."""
    (request,) = normal_rows(1, input_len=prompt_len, output_len=40, seed=1)
    alone = Run([await serve_one(engine, request) for _ in range(5)])
    return ServiceLevel(prompt_rate=request.prompt_len / alone.ttft_s(50) / 4, max_gap_s=4e-3 * alone.gap_ms(50))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", default="llama-40m")
    parser.add_argument("--rival", default="prefill_first")
    parser.add_argument("--prompt-len", type=int, default=325)
    parser.add_argument("--output-len", type=int, default=8)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 2, 3, 4, 6, 8, 12, 16])
    parser.add_argument("--requests", type=int, default=200)
    parser.add_argument("--budget", type=int, help="of both, instead of the latency target")
    parser.add_argument("--target-share", type=float, default=0.9, help="of the gap that the service level allows")
    return parser.parse_args()


async def measure(config: EngineConfig, load: list[TraceRow], clients: int) -> tuple[Run, dict[str, Any]]:
    """Measure one point in its own engine: two engines in a process disturb each other even if one rests."""
    async with running(config) as engine:
        await closed_loop(engine, load[:24], clients)  # teaches the engine the cost of steps
        return await closed_loop(engine, load, clients), engine.stats()["cost_model"]


async def main() -> None:
    args = parse()
    peaks: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        common = {
            "model": model_folder(folder, args.shape),
            "load_format": "dummy",
            "max_model_len": 4096,
            "enable_prefix_caching": False,
            "max_num_batched_tokens": args.budget or 2048,
        }
        async with running(EngineConfig(**common)) as engine:
            level = await solo_level(engine, args.prompt_len)
        target = None if args.budget else level.max_gap_s * 1e3 * args.target_share
        print(f"{args.shape}, prompts {args.prompt_len}, outputs {args.output_len}, {args.requests} requests a point")
        print(f"service level: {level.prompt_rate:.0f} prompt tokens/s, gap at most {level.max_gap_s * 1e3:.1f} ms")
        print("splitfuse: " + (f"budget {args.budget}" if args.budget else f"--target-itl-ms {target:.1f}"))
        print("clients         policy  req/s effective  P50 gap  P95 gap  P99 gap P50 TTFT P95  fit's error")
        configs = {
            "splitfuse": EngineConfig(target_itl_ms=target, **common),
            args.rival: EngineConfig(batching_policy=args.rival, **common),
        }
        for clients in args.clients:
            load = normal_rows(args.requests, input_len=args.prompt_len, output_len=args.output_len, seed=clients)
            for policy, config in configs.items():
                run, fit = await measure(config, load, clients)
                effective = effective_throughput(run.served, level, duration_s=run.duration_s)
                peaks[policy] = max(peaks.get(policy, 0.0), effective)
                gaps = [run.gap_ms(percent) for percent in (50, 95, 99)]
                ttfts = [run.ttft_s(percent) for percent in (50, 95)]
                row = _POINT.format(clients, policy, run.requests_per_s, effective, *gaps, *ttfts, fit["median_error"])
                print(row, flush=True)
    ratio = peaks["splitfuse"] / peaks[args.rival] if peaks[args.rival] else float("inf")
    print(f"peaks: splitfuse {peaks['splitfuse']:.2f}, {args.rival} {peaks[args.rival]:.2f}, ratio {ratio:.2f}")


if __name__ == "__main__":
    asyncio.run(main())
