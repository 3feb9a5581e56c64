"""Comparison of this engine with its peers on this CPU: A B A B in one run, on equal weights.

`python tests/bench/peers.py [--peers vllm llamacpp transformers] [--points 1x32 8x128 32x256] [--pairs 3]` takes seeded
random bfloat16 weights. With `--bits 4 --peers llamacpp openvino` all peers read one GGUF file, of random weights
(`--model llama-3.2-1b`, or a mixture: `--model qwen3-30b-a3b`) or a real model's (`--gguf FILE`); make the peers first:
tests/bench/peers/setup.sh. Every peer is a process that loads once and is stopped (SIGSTOP) while another one runs, so
that no engine's spinning threads cost another. `--peers splitfuse@COMMIT` is this engine at an earlier commit, and
peers_http.py takes it, too. Greedy, no early end; a round before the first pair warms up; prompts
are new in every round, so that no prefix cache helps. Rates stand beside the machine's limit.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).with_name("peers")))
sys.path.insert(0, str(Path(__file__).parents[1] / "support"))
from mixture_files import MIXTURES, write_mixture
from model_folder import write_gguf
from options import model_folder, name_of, parser_of, scratch_folder
from processes import Worker, end_children_on_sigterm, environment_of, python_of
from roofline import Cost, Meter, MixtureCost, Rates

from splitfuse.engine.execution.models.config import ModelConfig
from splitfuse.engine.execution.models.registry import read_model_config
from splitfuse.engine.extras.bench.offline import Point

OURS = "splitfuse"
WEIGHT_BITS = {"16": 16.0, "8": 8.5, "4": 4.5}  # bits per weight of BF16, Q8_0 and Q4_0, with scales
MIXES = ("Q2_K", "Q3_K_M", "IQ4_XS", "IQ2_XS")  # llama.cpp's, for tied models: the file's size is a step's


@dataclass
class Series:
    """Series of one peer's seconds at one point, a value per pair."""

    prompt: list[float] = field(default_factory=list)  # seconds until the first tokens
    whole: list[float] = field(default_factory=list)

    def rates(self, num_tokens: int) -> list[float]:
        """Return output tokens per second, prompts included in the time."""
        return [num_tokens / seconds for seconds in self.whole]


@dataclass
class Figures:
    """Figures of a point."""

    point: Point
    series: dict[str, Series]
    rates: list[Rates] = field(default_factory=list)
    agreement: dict[str, float] = field(default_factory=dict)  # share of first tokens that equal this engine's

    def machine(self) -> Rates:
        """Return the medians of the machine's rates over the pairs."""
        return Rates(
            *(statistics.median(getattr(rates, name) for rates in self.rates) for name in ("bandwidth", "matmul"))
        )


class Bench:
    """Bench with the workers and the prompts."""

    def __init__(self, args: argparse.Namespace, folder: Path, stack: ExitStack) -> None:
        self.args = args
        self.config = read_model_config(folder)
        self.meter = Meter(self.config, num_threads=args.num_threads)
        largest = {
            "num_seqs": max(point.num_seqs for point in args.points),
            "max_model_len": max(point.prompt_len for point in args.points) + args.output_len,
            "num_threads": args.num_threads,
        }
        self.workers: dict[str, Worker] = {}
        for peer in (OURS, *args.peers):
            worker = stack.enter_context(Worker(peer, folder, largest, args.settings.get(peer, {})))
            worker.ask(self.prompts(Point(1, 32)), 1)
            print(f"{peer:>18}: first token {worker.age():.1f} s after the start of its process", flush=True)
            worker.rest()
            self.workers[peer] = worker
        self._random = random.Random(args.seed)

    def prompts(self, point: Point) -> list[list[int]]:
        """Return prompts of ids that no engine has seen."""
        source = getattr(self, "_random", random.Random("start"))
        return [source.choices(range(self.config.vocab_size), k=point.prompt_len) for _ in range(point.num_seqs)]

    def run(
        self,
        point: Point,
        *,
        pairs: int | None = None,
        num_warm_ups: int = 1,
        num_rates: int | None = None,
        at_once: bool = False,
    ) -> Figures:
        """Run all pairs of a point; measure the machine's rates after the first `num_rates` of them.

        `at_once`: take the time of the prompts from the run of the whole answers, if the peer tells it.
        """
        figures = Figures(point, {peer: Series() for peer in self.workers})
        for pair in range(-num_warm_ups, pairs or self.args.pairs):
            asks = [(self.prompts(point), 1), (self.prompts(point), self.args.output_len)]
            firsts = {}
            for peer, worker in self.workers.items():
                prompt_s = None if at_once else worker.ask(*asks[0])[0]
                whole_s, outputs = worker.ask(*asks[1])
                if prompt_s is None:
                    prompt_s = worker.first_seconds or worker.ask(*asks[0])[0]
                worker.rest()
                firsts[peer] = [output[0] for output in outputs]
                if pair >= 0:
                    figures.series[peer].prompt.append(prompt_s)
                    figures.series[peer].whole.append(whole_s)
            if pair >= 0 and (num_rates is None or pair < num_rates):
                figures.rates.append(self.meter.measure())
            figures.agreement = {peer: _agreement(tokens, firsts[OURS]) for peer, tokens in firsts.items()}
        return figures


def _agreement(tokens: Sequence[int], ours: Sequence[int]) -> float:
    return statistics.mean(a == b for a, b in zip(tokens, ours, strict=True))


def cost_of(config: ModelConfig, args: argparse.Namespace, file: Path) -> Cost:
    """Return the cost of a forward pass. requantize.py makes a Q4_0 file's output matrix Q6_K, of odd widths Q8_0."""
    if args.model in MIXTURES and not args.gguf:
        expert_bytes, other_bytes = MIXTURES[args.model].num_bytes()
        return MixtureCost(config, expert_bytes=expert_bytes, other_bytes=other_bytes)
    if args.bits in MIXES:
        cost = Cost(config)
        return Cost(config, 8 * file.stat().st_size / (cost.layer_params + cost.head_params))
    head_bits = (6.5625 if config.hidden_size % 256 == 0 else 8.5) if args.bits == "4" else None
    return Cost(config, WEIGHT_BITS[args.bits], head_bits)


def summary(figures: Figures, cost: Cost, output_len: int) -> dict[str, Any]:
    """Return medians, ratios of pairs, shares of the limits."""
    point, machine = figures.point, figures.machine()
    sizes = {"num_seqs": point.num_seqs, "prompt_len": point.prompt_len}
    least = cost.generate_seconds(machine, **sizes, output_len=output_len)
    prompt_least = cost.seconds(machine, num_seqs=point.num_seqs, start=0, num_tokens=point.prompt_len)
    num_tokens = point.num_seqs * output_len
    ours = figures.series[OURS].rates(num_tokens)
    rows = {}
    for peer, series in figures.series.items():
        rates = series.rates(num_tokens)
        ratios = [a / b for a, b in zip(ours, rates, strict=True)]
        whole, prompt = statistics.median(series.whole), statistics.median(series.prompt)
        rows[peer] = {
            "tokens_per_s": statistics.median(rates), "share_of_limit": least / whole,
            "ratio": statistics.median(ratios), "ratio_min": min(ratios), "ratio_max": max(ratios),
            "prompt_tokens_per_s": point.num_seqs * point.prompt_len / prompt, "prompt_share": prompt_least / prompt,
            "step_ms": 1e3 * (whole - prompt) / (output_len - 1),
            "step_share": (least - prompt_least) / (whole - prompt), "same_first_tokens": figures.agreement[peer],
        }  # fmt: skip
    return {"point": str(point), "bandwidth": machine.bandwidth, "matmul": machine.matmul, "peers": rows}


def show(result: dict[str, Any]) -> None:
    """Print one point's table."""
    rates = f"{result['bandwidth'] / 1e9:.1f} GB/s read, {result['matmul'] / 1e9:.0f} GFLOP/s"
    print(f"\n{result['point']}   (machine: {rates})")
    print(
        "              peer  tokens/s  limit  ours/peer (min to max)  prompt tok/s  limit  step ms  limit  same first"
    )
    for peer, row in result["peers"].items():
        ratio = f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
        print(
            f"{peer:>18} {row['tokens_per_s']:>9.1f} {row['share_of_limit']:>6.0%} {ratio:>23} "
            f"{row['prompt_tokens_per_s']:>13.0f} {row['prompt_share']:>6.0%} {row['step_ms']:>8.1f} "
            f"{row['step_share']:>6.0%} {row['same_first_tokens']:>11.0%}",
            flush=True,
        )


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__, peers=["vllm", "llamacpp", "transformers"], models=list(MIXTURES))
    add = parser.add_argument
    add("--points", nargs="+", type=Point.parse, default=[Point(1, 32), Point(8, 128), Point(32, 256)])
    add("--output-len", type=int, default=64)
    add("--gguf", type=Path, help="a real model; its weights are requantized to --bits (of a folder: not)")
    add("--bits", choices=[*WEIGHT_BITS, *MIXES], default="16", help="of the weights: BF16, Q8_0, Q4_0, or a mix")
    add("--settings", type=json.loads, default={}, help='of peers, as JSON: {"vllm": {"enforce_eager": true}}')
    return parser.parse_args()


def requantized(file: Path, bits: str, folder: Path) -> Path:
    """Return the file with weights of that many bits, written into the folder unless it exists."""
    made = folder / f"{file.stem}-as-{bits}.gguf"
    if not made.exists():
        script = Path(__file__).parent / "peers/requantize.py"
        command = [python_of("llamacpp"), str(script), str(file), str(made), bits]
        subprocess.run(command, env=environment_of("llamacpp"), check=True, capture_output=True)
    return made


def weights(args: argparse.Namespace, stack: ExitStack) -> Path:
    """Return the folder or the file that the peers read, written unless it exists."""
    if args.gguf and args.gguf.is_dir():
        return Path(args.gguf)
    if args.gguf:
        return requantized(args.gguf, args.bits, scratch_folder(args, stack))
    if args.model in MIXTURES:
        file = scratch_folder(args, stack) / f"{args.model}.gguf"
        if not file.exists():
            write_mixture(file, MIXTURES[args.model])
        return Path(file)
    if args.bits != "16" and (made := scratch_folder(args, stack) / f"{name_of(args)}-as-{args.bits}.gguf").exists():
        return made
    folder = model_folder(args, stack)
    if "llamacpp" in args.peers or args.bits != "16":
        write_gguf(folder, python_of("llamacpp"))
    return (
        folder if args.bits == "16" else requantized(folder.with_name(f"{folder.name}.gguf"), args.bits, folder.parent)
    )


def main() -> None:
    args = parse()
    end_children_on_sigterm()
    with ExitStack() as stack:
        folder = weights(args, stack)
        bench = Bench(args, folder, stack)
        print(f"{folder.name}, {args.bits} bits a weight, {args.output_len} new tokens, {args.num_threads} threads")
        results = []
        for point in args.points:
            results.append(summary(bench.run(point), cost_of(bench.config, args, folder), args.output_len))
            show(results[-1])
    if args.save_result:
        args.save_result.write_text(json.dumps({"model": folder.name, "bits": args.bits, "points": results}, indent=2))


if __name__ == "__main__":
    main()
