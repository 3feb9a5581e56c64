"""`splitfuse simulate`: simulates a load under a policy, a budget or a pool, without a model."""

import argparse
import dataclasses
import json
import math
import random
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ...client.bench.latency import Outcome, percentile
from ...client.bench.slo import ServiceLevel, effective_throughput
from ...client.bench.traces import TraceError, TraceRow, read_trace
from ...client.bench.workload import PromptMaker, arrivals, normal_rows
from ...engine.config import EngineConfig, ResolvedConfig
from ...engine.core.cost_model import CPU_SECONDS, CostModel
from ...engine.errors import ConfigError
from ...engine.extras.simulation.simulator import Arrival, Served, Simulation

DEFAULT_NUM_BLOCKS = 4096
CPU_SWAP_S = 2e-5  # 16 tokens of the model of CPU_SECONDS, 196 KB, at 10 GB/s
_NUM_REQUESTS = 512  # without a trace, like FastGen's benchmark
_SLACK = 4  # the default service level: a quarter of the rates of a request alone on the machine


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of a simulation, besides the engine's settings."""
    add = parser.add_argument
    add("--trace", type=Path, metavar="FILE", help="recorded load: CSV of Azure or vidur, JSON lines of Mooncake")
    add("--scale", type=float, default=1.0, metavar="X", help="multiply all lengths of a trace, default 1")
    add("--stretch", type=float, default=1.0, metavar="X", help="multiply a trace's times, default 1")
    add("--limit", type=int, metavar="N", help="only the first N requests")
    add("--request-rate", type=float, metavar="R", help="random arrivals, R per second, instead of the trace's times")
    add("--clients", type=int, metavar="C", help="closed loop: C clients, each with one request at a time")
    add("--prompt-len", type=float, default=325.0, metavar="N", help="mean prompt length without a trace, default 325")
    add("--output-len", type=float, default=8.0, metavar="N", help="mean output length without a trace, default 8")
    add("--cost", type=_seconds, default=CPU_SECONDS, metavar="A,B,C", help=_COST_HELP)
    add("--swap-cost", type=float, default=CPU_SWAP_S, metavar="S", help=_SWAP_HELP)
    add("--sla-prompt-rate", type=float, metavar="R", help="first token due after prompt tokens / R seconds")
    add("--sla-token-rate", type=float, metavar="R", help="moving average of the gaps between tokens at most 1 / R")
    add("--json", action="store_true", dest="as_json", help="print one JSON object")


_SWAP_HELP = (
    f"seconds to copy a block to the host or back, default {CPU_SWAP_S:g}; with a --swap-space the host holds "
    "as many blocks as the device"
)
_COST_HELP = (
    "a step takes A + B * tokens + C * context seconds; default "
    f"{','.join(f'{value:g}' for value in CPU_SECONDS)}, a 40 M-parameter model on a CPU"
)


def run(config: EngineConfig, args: argparse.Namespace) -> int:
    """Run the command."""
    rows = _rows(args, seed=config.seed)
    if not any(row.hash_ids for row in rows):
        # Unknown contents cannot be found again, so skip the hashing.
        config = dataclasses.replace(config, enable_prefix_caching=False)
    num_blocks = config.num_kv_blocks or DEFAULT_NUM_BLOCKS
    simulation = Simulation(
        ResolvedConfig.of(config, device="cpu"),
        num_blocks=num_blocks,
        num_host_blocks=num_blocks if config.swap_space else 0,
        cost=CostModel.fixed(*args.cost),
        swap_s=args.swap_cost,
    )
    simulation.run(arriving(rows, seed=config.seed), num_clients=args.clients)
    if not simulation.served:
        raise ConfigError("every request is longer than the whole KV cache; try a larger --num-kv-blocks")
    figures = report(simulation, _service_level(simulation, args))
    if args.as_json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name:<28}{_format(value)}")
    return 0


def arriving(rows: Sequence[TraceRow], *, seed: int) -> list[Arrival]:
    """Convert the requests for the simulator. A request without a recorded time arrives at 0 s."""
    maker, source = PromptMaker(vocab_size=None, seed=seed), random.Random(seed)
    return [
        Arrival(row.arrival or 0.0, row.prompt_len, row.output_len, partial(maker.token_ids, row, source))
        for row in rows
    ]


def _rows(args: argparse.Namespace, *, seed: int) -> list[TraceRow]:
    for name in ("limit", "clients", "request_rate", "prompt_len", "output_len"):
        value = getattr(args, name)
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ConfigError(f"--{name.replace('_', '-')} must be above 0, not {value}")
    if args.trace is None:
        if args.clients is None and args.request_rate is None:
            raise ConfigError("simulate needs a load: --trace FILE, or --clients C, or --request-rate R")
        count = args.limit or _NUM_REQUESTS
        rows = normal_rows(count, input_len=args.prompt_len, output_len=args.output_len, seed=seed)
    else:
        try:
            rows = read_trace(args.trace, scale=args.scale, stretch=args.stretch, limit=args.limit)
        except TraceError as exc:
            raise ConfigError(str(exc)) from exc
    if args.request_rate is None:
        return rows
    times = arrivals(len(rows), rate=args.request_rate, burstiness=1.0, source=random.Random(seed))
    return [dataclasses.replace(row, arrival=time) for row, time in zip(rows, times, strict=True)]


def _service_level(simulation: Simulation, args: argparse.Namespace) -> ServiceLevel:
    """Return the requested level, or a quarter of the rates of a request that is alone on the machine."""
    budget = simulation.config.max_num_batched_tokens
    cost = simulation.cost
    mean_context = sum(served.prompt_len for served in simulation.served) // len(simulation.served)
    return ServiceLevel(
        prompt_rate=args.sla_prompt_rate or budget / cost.predict(budget, 0) / _SLACK,
        max_gap_s=1 / args.sla_token_rate if args.sla_token_rate else _SLACK * cost.predict(1, mean_context),
    )


def report(simulation: Simulation, level: ServiceLevel) -> dict[str, Any]:
    """Compute the figures of a finished run: times in simulated seconds, but steps_per_s per real second."""
    outcomes = [outcome(served) for served in simulation.served]
    duration = simulation.now - simulation.served[0].arrival_s
    num_output_tokens = sum(outcome.output_len for outcome in outcomes)
    return {
        "policy": simulation.config.batching_policy,
        "requests": len(outcomes),
        "steps": simulation.num_steps,
        **_latencies(outcomes),
        "tokens_per_s": num_output_tokens / duration,
        "num_preemptions": simulation.scheduler.num_preemptions,
        "kv_waste": simulation.kv_waste,
        "steps_per_s": simulation.num_steps / simulation.wall_s,
        "scheduling_policy": simulation.config.scheduling_policy,
        "duration_s": duration,
        "requests_per_s": len(outcomes) / duration,
        "effective_requests_per_s": effective_throughput(outcomes, level, duration_s=duration),
        "sla_prompt_rate": level.prompt_rate,
        "sla_max_gap_s": level.max_gap_s,
        "prompt_tokens": sum(outcome.prompt_len for outcome in outcomes),
        "output_tokens": num_output_tokens,
        "cached_tokens": simulation.num_cached_tokens,
        "tokens_per_step": simulation.num_tokens / simulation.num_steps,
        "kv_waste_by_size": simulation.kv_waste_by_size,
        "num_refused": simulation.num_refused,
    }


def outcome(served: Served) -> Outcome:
    """Convert a simulated request to the record of a measured one."""
    return Outcome.of_tokens(served.prompt_len, sent=served.arrival_s, token_times=served.token_times)


def _latencies(outcomes: Sequence[Outcome]) -> dict[str, float | None]:
    ttfts = sorted(outcome.ttft for outcome in outcomes)
    gaps = sorted(gap for outcome in outcomes for gap in outcome.itls)
    return {
        "ttft_p50": percentile(ttfts, 50),
        "ttft_p95": percentile(ttfts, 95),
        "itl_p50": percentile(gaps, 50),
        "itl_p95": percentile(gaps, 95),
        "itl_p99": percentile(gaps, 99),
    }


def _seconds(text: str) -> tuple[float, float, float]:
    try:
        a, b, c = (float(part) for part in text.split(","))
    except ValueError as exc:
        raise argparse.ArgumentTypeError(f"{text!r} is not three numbers A,B,C") from exc
    if not (min(a, b, c) >= 0 and math.isfinite(a + b + c) and a + b + c > 0):
        raise argparse.ArgumentTypeError(f"{text!r}: A,B,C must be finite, at least 0 and not all 0")
    return (a, b, c)


def _format(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
