"""Table of a published shape beside its peers, each figure with the share of the machine's limit.

`python tests/bench/sizes.py --model llama-3.2-1b --bits 4 --peers llamacpp openvino [--pairs 5]`: 1 x 32, 8 x 128 and
16 x 512, a prompt of 8,192, decode at a context of 16,384, and eight requests that share a prefix of 4,096. By turns on
equal weights (peers.py); workers are loaded anew for each of the three groups, whose caches differ in size. `--loads`
chooses groups. Peers that cannot share a prefix compute it eight times.
"""

import argparse
from contextlib import ExitStack
from typing import Any

import peers as bench  # also finds peers/
from options import parser_of
from processes import end_children_on_sigterm

from splitfuse.engine.extras.bench.offline import Point

LOADS = {
    "batches": [Point(1, 32), Point(8, 128), Point(16, 512)],
    "long": [Point(1, 8192), Point(1, 16384)],
    "shared": [Point(8, 4096 + 64)],
}
_SHARED = 4096  # tokens of the shared prefix


class SharedPrefix(bench.Bench):
    """Bench of prompts that begin with the same tokens, new in every round."""

    def prompts(self, point: Point) -> list[list[int]]:
        rows = super().prompts(point)
        return [rows[0][:_SHARED] + row[_SHARED:] for row in rows] if point.prompt_len > _SHARED else rows


def cells(load: str, result: dict[str, Any], peer: str) -> str:
    """Return what matters of a load: tokens/s with prompts, or of prompts, or of steps; share of the limit; ratio."""
    row, ours = result["peers"][peer], result["peers"][bench.OURS]
    if result["point"] == str(Point(1, 8192)):
        rate, share, own = row["prompt_tokens_per_s"], row["prompt_share"], ours["prompt_tokens_per_s"]
        ratio = f"{own / rate:.2f}"
    elif load == "long":
        rate, share, ratio = 1e3 / row["step_ms"], row["step_share"], f"{row['step_ms'] / ours['step_ms']:.2f}"
    else:
        rate, share = row["tokens_per_s"], row["share_of_limit"]
        ratio = f"{row['ratio']:.2f} ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
    limit = "" if load == "shared" else f", {share:.0%}"  # the limit counts every prefix
    return f"{rate:.1f}{limit}" if peer == bench.OURS else f"{rate:.1f}{limit}, {ratio}"


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__, peers=["llamacpp", "openvino"], models=list(bench.MIXTURES))
    parser.add_argument("--bits", type=int, choices=bench.WEIGHT_BITS, default=4)
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=list(LOADS))
    parser.add_argument("--output-len", type=int, default=64)
    parser.set_defaults(gguf=None, settings={})
    return parser.parse_args()


def main() -> None:
    args = parse()
    end_children_on_sigterm()
    settings = {"openvino": {"enable_prefix_caching": True}}
    with ExitStack() as stack:
        folder = bench.weights(args, stack)
        print(f"{folder.name}, {args.num_threads} threads, medians of {args.pairs} pairs: tokens/s, share, ours/theirs")
        print(f"| load (read, matmul) | {' | '.join([bench.OURS, *args.peers])} |")
        for load in args.loads:
            args.points = LOADS[load]
            args.settings = settings if load == "shared" else {}
            with ExitStack() as workers:
                kind = SharedPrefix if load == "shared" else bench.Bench
                running = kind(args, folder, workers)
                for point in args.points:
                    result = bench.summary(running.run(point), bench.cost_of(running.config, args), args.output_len)
                    rates = f"{result['bandwidth'] / 1e9:.0f} GB/s, {result['matmul'] / 1e9:.0f} GFLOP/s"
                    row = " | ".join(cells(load, result, peer) for peer in result["peers"])
                    print(f"| {load}: {point} ({rates}) | {row} |", flush=True)


if __name__ == "__main__":
    main()
