"""Goodput: requests per second within both goals, at rising rates of arrival, without and with deadlines.

`python tests/bench/goodput.py --traces FOLDER` simulates Azure's traces with the costs of SmolLM2 on
two CPU cores and of an 8 B model on a GPU.
Lengths are those of the trace, or a quarter; arrivals are random. A request counts if its first token comes within
ttft_ms and its mean time between tokens is at most itl_ms: `vllm bench serve --goodput ttft:MS tpot:MS`.
measurements.py draws what `--save-result` writes.
"""

import argparse
import dataclasses
import datetime
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from splitfuse.client.bench.latency import Outcome
from splitfuse.client.bench.traces import TraceRow, read_trace
from splitfuse.client.bench.workload import arrivals
from splitfuse.engine import EngineConfig
from splitfuse.engine.config import ResolvedConfig
from splitfuse.engine.core.cost_model import CostModel
from splitfuse.engine.extras.simulation.simulator import Simulation
from splitfuse.server.commands.simulate import arriving, outcome

TRACES = ("conv", "code")


class Machine(NamedTuple):
    """Costs of a machine with a model, its goals, and rates that reach beyond what it can serve."""

    cost: tuple[float, float, float]  # seconds per step, per token, per token of context
    ttft_ms: int
    itl_ms: int
    scale: float
    limits: dict[str, Any]
    rates: dict[str, Sequence[float]]


CPU_RATES = {"conv": (0.5, 1, 1.5, 2, 3), "code": (0.25, 0.5, 0.75, 1, 1.5)}
MACHINES = {
    "SmolLM2 on two CPU cores": Machine((8e-3, 1.6e-3, 2e-6), 2000, 100, 0.25, {}, CPU_RATES),
    "8 B on a GPU": Machine(
        (6.5e-3, 2.7e-5, 4.4e-8),
        500,
        25,
        1.0,
        {"max_num_seqs": 256, "max_num_batched_tokens": 2048},
        {"conv": (5, 10, 15, 20, 25), "code": (5, 7.5, 10, 12.5, 15)},
    ),
}
WHERE = (
    "Azure's traces, simulated with each machine's step costs; goals of 2 s and 100 ms on the CPU, "
    "0.5 s and 25 ms on the GPU; {}"
)
Curves = dict[str, dict[str, list[tuple[float, float]]]]  # picture, way, (rate, goodput)


def rows_of(args: argparse.Namespace, trace: str, scale: float, rate: float) -> list[TraceRow]:
    rows = read_trace(args.traces / f"AzureLLMInferenceTrace_{trace}.csv", scale=scale, limit=args.requests)
    times = arrivals(len(rows), rate=rate, burstiness=1.0, source=random.Random(args.seed))
    return [dataclasses.replace(row, arrival=at) for row, at in zip(rows, times, strict=True)]


def ways(machine: Machine) -> dict[str, dict[str, Any]]:
    """Return the settings to compare."""
    is_gpu = bool(machine.limits)
    return {
        "queue order": {} if is_gpu else {"long_prefill_token_threshold": 256},  # what `off` means for streams
        "deadlines": {"target_itl_ms": "auto", "ttft_ms": machine.ttft_ms, "itl_ms": machine.itl_ms},
    }


def goodput(outcomes: Sequence[Outcome], machine: Machine, seconds: float) -> float:
    limits = {"ttft": machine.ttft_ms, "tpot": machine.itl_ms}
    return sum(one.meets(limits) for one in outcomes) / seconds


def simulated(machine: Machine, rows: list[TraceRow], settings: dict[str, Any]) -> list[Outcome]:
    config = ResolvedConfig.of(EngineConfig(enable_prefix_caching=False, **machine.limits, **settings), device="cpu")
    simulation = Simulation(config, num_blocks=30_000, cost=CostModel.fixed(*machine.cost))
    simulation.run(arriving(rows, seed=0))
    return [outcome(served) for served in simulation.served]


def run(args: argparse.Namespace) -> Curves:
    curves: Curves = {}
    for name, machine in MACHINES.items():
        for trace in args.trace:
            curve = curves.setdefault(f"{name}, {trace}", {})
            for rate in args.rates or machine.rates[trace]:
                rows = rows_of(args, trace, machine.scale, rate)
                for way, settings in ways(machine).items():
                    outcomes = simulated(machine, rows, settings)
                    good = goodput(outcomes, machine, rows[-1].arrival or 1.0)
                    curve.setdefault(way, []).append((rate, good))
                    longest = max(one.ttft for one in outcomes)
                    print(f"{name}, {trace}, {rate:>5} requests/s, {way:>11}: {good:.3f} in time, ", end="")
                    print(f"longest TTFT {longest:.1f} s", flush=True)
            peaks = {way: max(good for _, good in points) for way, points in curve.items()}
            before, after = peaks.values()
            print(f"{name}, {trace}: peaks {before:.3f} and {after:.3f}, ratio {after / before:.2f}", flush=True)
    return curves


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--traces", type=Path, required=True, help="folder with AzureLLMInferenceTrace_conv.csv and _code.csv")
    add("--trace", nargs="+", choices=TRACES, default=TRACES)
    add("--requests", type=int, default=300, help="of each run")
    add("--rates", type=float, nargs="+", help="requests per second instead of the machine's")
    add("--seed", type=int, default=1)
    add("--save-result", type=Path, metavar="FILE")
    return parser.parse_args()


def main() -> None:
    args = parse()
    curves = run(args)
    if args.save_result:
        args.save_result.write_text(
            json.dumps({"where": WHERE.format(datetime.date.today()), "curves": curves}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
