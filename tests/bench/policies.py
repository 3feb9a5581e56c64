"""FastGen's experiment in one engine: closed loops of clients, SplitFuse beside a rival policy, on the real model.

`python tests/bench/policies.py [--rival prefill_first] [--prompt-len 325 --output-len 60] [--clients 1 4 8 16]`
Lengths are Normal(mean, 0.3 mean); the service level is a quarter of this machine's own solo rates (Holmes et al. 2024
used 512 prompt tokens/s and 4 tokens/s on an A100). Per number of clients the policies take turns.
"""

import argparse
import asyncio
import json
import tempfile
import time
from pathlib import Path

from splitfuse.engine import AsyncEngine, EngineConfig, OutputDelta, SamplingParams
from splitfuse.engine.bench import SHAPES
from splitfuse.engine.served import Served, ServiceLevel, effective_throughput, percentile
from splitfuse.engine.trace import TraceRequest, normal_lengths, prompt_token_ids


async def serve_one(engine: AsyncEngine, request: TraceRequest, name: str) -> Served:
    """Run one request to its end and note when its tokens came."""
    ids = [token % 32000 for token in prompt_token_ids(request, name=name, seed=0)]
    served = Served(len(ids), time.monotonic())
    ended = asyncio.Event()

    def sink(delta: OutputDelta) -> None:
        served.token_times.extend([time.monotonic()] * len(delta.token_ids))
        if delta.finish_reason is not None:
            ended.set()

    params = SamplingParams(temperature=0, max_tokens=request.output_len, ignore_eos=True)
    await engine.submit(ids, params, sink)
    await ended.wait()
    return served


async def closed_loop(
    engine: AsyncEngine, requests: list[TraceRequest], clients: int, name: str
) -> tuple[list[Served], float]:
    """So many clients, each with one request at a time, until all requests are served; and the seconds it took."""
    queue = list(enumerate(requests))
    done: list[Served] = []

    async def client() -> None:
        while queue:
            number, request = queue.pop(0)
            done.append(await serve_one(engine, request, f"{name}-{number}"))

    start = time.monotonic()
    await asyncio.gather(*(client() for _ in range(clients)))
    return done, time.monotonic() - start


async def solo_level(engine: AsyncEngine, prompt_len: int) -> ServiceLevel:
    """A quarter of the prompt rate and of the token rate that a request alone gets."""
    request = normal_lengths(1, prompt_len=prompt_len, output_len=40, seed=1)[0]
    await serve_one(engine, request, "warm-up")
    alone = await serve_one(engine, request, "alone")
    gap = sorted(alone.gaps)[len(alone.gaps) // 2]
    return ServiceLevel(prompt_rate=alone.prompt_len / alone.ttft / 4, max_gap_s=4 * gap)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rival", default="prefill_first")
    parser.add_argument("--prompt-len", type=int, default=325)
    parser.add_argument("--output-len", type=int, default=60)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--target-itl-ms", type=float)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(SHAPES["llama-221m"]))  # noqa: ASYNC240  nothing runs yet
        engines = {}
        for policy in ("splitfuse", args.rival):
            engines[policy] = AsyncEngine(
                EngineConfig(
                    model=folder,
                    load_format="dummy",
                    max_model_len=2048,
                    enable_prefix_caching=False,
                    batching_policy=policy,
                    max_num_batched_tokens=args.budget,
                    target_itl_ms=args.target_itl_ms if policy == "splitfuse" else None,
                )
            )
            await engines[policy].start()
    level = await solo_level(engines["splitfuse"], args.prompt_len)
    print(f"prompts {args.prompt_len}, outputs {args.output_len}, budget {args.budget}, target {args.target_itl_ms} ms")
    print(f"service level: {level.prompt_rate:.0f} prompt tokens/s, gap at most {level.max_gap_s * 1e3:.0f} ms")
    print(f"{'clients':>7} {'policy':>14} {'req/s':>6} {'effective':>9} {'P50 gap':>8} {'P95 gap':>8} {'P95 TTFT':>8}")
    for clients in args.clients:
        for policy, engine in engines.items():
            requests = normal_lengths(
                args.requests, prompt_len=args.prompt_len, output_len=args.output_len, seed=clients
            )
            done, duration = await closed_loop(engine, requests, clients, f"{policy}-{clients}")
            gaps = sorted(gap for served in done for gap in served.gaps)
            p50, p95 = (percentile(gaps, percent) or 0.0 for percent in (50, 95))
            ttft = percentile(sorted(served.ttft for served in done), 95) or 0.0
            effective = effective_throughput(done, level, duration_s=duration)
            print(
                f"{clients:>7} {policy:>14} {len(done) / duration:>6.2f} {effective:>9.2f} "
                f"{p50 * 1e3:>6.0f}ms {p95 * 1e3:>6.0f}ms {ttft:>7.2f}s",
                flush=True,
            )
    for engine in engines.values():
        await engine.stop()


if __name__ == "__main__":
    asyncio.run(main())
