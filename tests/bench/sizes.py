"""Tables of published shapes beside their peers, each figure with the share of the machine's limit.

`python tests/bench/sizes.py --folder FOLDER [--shapes llama-3.2-1b llama-3.1-8b:6 …] [--loads brief]` takes random
weights of these shapes from the folder, written unless they are there. A number after the colon cuts a shape to so many
layers. By default five shapes in 4 bits (`--bits 16 8 4 Q2_K Q3_K_M IQ4_XS IQ2_XS`: these one after another) with
brief loads: 1 x 32, 8 x 128, and one prompt of 4,096 with what decoding
costs behind it; 12 minutes on two quiet cores beside llama.cpp, and no shape begins after --seconds. By turns on equal
weights (peers.py); workers are loaded anew for each group of loads, whose caches differ in size. Peers that cannot
share a prefix compute it eight times. `--points 1x8192 1x32768 32x256` takes these in the place of the loads, prompts
from 4,096 tokens on once: `--shapes llama-3.2-1b:2` keeps the shape of a step and shortens 32,768 tokens.
"""

import argparse
import json
import time
from contextlib import ExitStack
from itertools import product
from typing import Any

import peers as bench  # also finds peers/
from options import name_of, parser_of
from processes import end_children_on_sigterm

from splitfuse.engine.extras.bench.offline import SHAPES, Point

LOADS = {
    "brief": [Point(1, 32), Point(8, 128), Point(1, 4096)],
    "batches": [Point(1, 32), Point(8, 128), Point(16, 512)],
    "long": [Point(1, 8192), Point(1, 16384)],
    "shared": [Point(8, 4096 + 64)],
}
DEFAULT_SHAPES = ["llama-3.2-1b", "qwen3-1.7b", "llama-3.2-3b:10", "llama-3.1-8b:6", "qwen3-30b-a3b"]
_SHARED = 4096  # tokens of the shared prefix
_LONG = 4096  # from here on a prompt is reported by itself, with the steps behind it
_LONG_OUTPUT = 128  # so many steps that the prompt's own variation does not hide them


class SharedPrefix(bench.Bench):
    """Bench of prompts that begin with the same tokens, new in every round."""

    def prompts(self, point: Point) -> list[list[int]]:
        rows = super().prompts(point)
        return [rows[0][:_SHARED] + row[_SHARED:] for row in rows] if point.prompt_len > _SHARED else rows


def cells(load: str, result: dict[str, Any], peer: str) -> str:
    """Return tokens/s with their share of the limit, and ours/theirs; of a long prompt those of the steps, too."""
    row, ours = result["peers"][peer], result["peers"][bench.OURS]
    if load != "shared" and int(result["point"].split()[-1]) >= _LONG:
        parts = [
            (row["prompt_tokens_per_s"], row["prompt_share"], ours["prompt_tokens_per_s"] / row["prompt_tokens_per_s"]),
            (1e3 / row["step_ms"], row["step_share"], row["step_ms"] / ours["step_ms"]),
        ]
        texts = [
            f"{rate:.1f}, {share:.0%}" + ("" if peer == bench.OURS else f", **{ratio:.2f}**")
            for rate, share, ratio in parts
        ]
        return f"prompt {texts[0]}; decode {texts[1]}"
    limit = "" if load == "shared" else f", {row['share_of_limit']:.0%}"  # the limit counts every prefix
    ratio = f", **{row['ratio']:.2f}** ({row['ratio_min']:.2f} to {row['ratio_max']:.2f})"
    return f"{row['tokens_per_s']:.1f}{limit}" + ("" if peer == bench.OURS else ratio)


def measure(args: argparse.Namespace, load: str, points: list[Point]) -> None:
    """Print the rows of one shape and group of loads."""
    args.points = points
    args.settings = args.own_settings | ({"openvino": {"enable_prefix_caching": True}} if load == "shared" else {})
    output_len, args.output_len = args.output_len, max(args.output_len, _LONG_OUTPUT)
    with ExitStack() as stack:
        folder = bench.weights(args, stack)
        kind = SharedPrefix if load == "shared" else bench.Bench
        running = kind(args, folder, stack)
        for point in args.points:
            is_long = point.prompt_len >= _LONG
            args.output_len = _LONG_OUTPUT if is_long else output_len
            is_once = is_long and load in ("brief", "points")  # half a minute a prompt
            times: dict[str, Any] = {"pairs": 1, "num_warm_ups": 0} if is_once else {}
            figures = running.run(point, **times, num_rates=1, at_once=is_long and load != "shared")
            result = bench.summary(figures, bench.cost_of(running.config, args, folder), args.output_len)
            rates = f"{result['bandwidth'] / 1e9:.0f} GB/s, {result['matmul'] / 1e9:.0f} GFLOP/s"
            row = " | ".join(cells(load, result, peer) for peer in result["peers"])
            print(f"| {name_of(args)} | {args.bits} | {point} | {rates} | {row} |", flush=True)
    args.output_len = output_len


def parse() -> argparse.Namespace:
    parser = parser_of(__doc__, peers=["llamacpp"], models=list(bench.MIXTURES))
    parser.add_argument("--shapes", nargs="+", default=DEFAULT_SHAPES)
    parser.add_argument("--bits", nargs="+", choices=[*bench.WEIGHT_BITS, *bench.MIXES], default=["4"])
    parser.add_argument("--loads", nargs="+", choices=LOADS, default=["brief"])
    parser.add_argument("--points", nargs="+", type=Point.parse, dest="own_points", metavar="POINT")
    parser.add_argument("--seconds", type=float, default=780.0, help="after which no shape begins")
    parser.add_argument("--output-len", type=int, default=32)
    parser.add_argument("--settings", type=json.loads, default={}, dest="own_settings", help="as in peers.py")
    parser.set_defaults(gguf=None)
    args = parser.parse_args()
    for shape in args.shapes:
        if shape.split(":")[0] not in (known := [*SHAPES, *bench.MIXTURES]):
            parser.error(f"--shapes knows {', '.join(known)}, each with :LAYERS to cut it")
    return args


def main() -> None:
    args = parse()
    end_children_on_sigterm()
    start = time.monotonic()
    loads = {"points": args.own_points} if args.own_points else {load: LOADS[load] for load in args.loads}
    print(f"{args.num_threads} threads, {args.output_len} new tokens, medians of {args.pairs} pairs")
    print("tokens/s, share of the machine's limit, ours/theirs (least to most)")
    print(f"| shape | bits | load | read, matmul | {' | '.join([bench.OURS, *args.peers])} |", flush=True)
    for shape, bits in product(args.shapes, args.bits):
        if time.monotonic() - start > args.seconds:
            print(f"{shape} in {bits}: left out")
            continue
        args.bits, (args.model, _, layers) = bits, shape.partition(":")
        args.layers = int(layers) if layers else None
        for load, points in loads.items():
            measure(args, load, points)
        print(f"{shape} in {bits}: after {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
