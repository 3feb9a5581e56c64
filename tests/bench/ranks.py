"""Cost of tensor parallelism on the CPU: `python tests/bench/ranks.py [--pairs 5]`.

First a sum over ranks that are processes, by size; then a model on two ranks of one thread each beside one
rank of two threads, by turns. Needs as many cores as ranks: a waiting rank keeps its core for a while.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from splitfuse.engine import LLM
from splitfuse.engine.core.sampling_params import SamplingParams
from splitfuse.engine.execution.models.registry import read_model_config
from splitfuse.engine.extras.bench.offline import SHAPES, Generate, Point, measure
from splitfuse.kernels import ops

WIDTH = 1024
NUM_THREADS = 2
NUM_SUMS, NUM_ROUNDS = 200, 20


def sums(memory: int, rank: int, num_ranks: int, num_rows: int) -> float:
    """Return the microseconds of a sum: the least of the rounds, because the others were disturbed."""
    torch.set_num_threads(1)
    group = ops.rank_group(memory, rank=rank, num_ranks=num_ranks, limit_s=60.0)
    partials = torch.ones(num_rows, WIDTH, dtype=torch.bfloat16)
    rounds = []
    for _ in range(NUM_ROUNDS):
        start = time.perf_counter()
        for _ in range(NUM_SUMS):
            out = group.sum(partials, width=WIDTH)
        rounds.append((time.perf_counter() - start) / NUM_SUMS * 1e6)
    assert group.failure() is None
    assert bool((out == num_ranks).all())
    return min(rounds)


def print_sums(num_ranks: int) -> None:
    for num_rows in (1, 32, 256):
        memory = os.memfd_create("ranks")
        context = multiprocessing.get_context("fork")
        others = [
            context.Process(target=sums, args=(memory, rank, num_ranks, num_rows)) for rank in range(1, num_ranks)
        ]
        for other in others:
            other.start()
        print(
            f"sum of {num_ranks} x [{num_rows}, {WIDTH}] bfloat16: {sums(memory, 0, num_ranks, num_rows):.1f} us",
            flush=True,
        )
        for other in others:
            other.join()
        os.close(memory)


def generator(folder: Path, points: list[Point], *, num_ranks: int) -> Generate:
    """Return `generate` of an LLM whose ranks share the threads."""
    llm = LLM(
        model=str(folder),
        load_format="dummy",
        device="cpu",
        dtype="bfloat16",
        max_num_seqs=max(point.num_seqs for point in points),
        max_model_len=max(point.prompt_len for point in points) + 64,
        tensor_parallel_size=num_ranks,
        num_threads=NUM_THREADS,
    )

    def generate(prompts: list[list[int]], output_len: int) -> list[list[int]]:
        torch.set_num_threads(NUM_THREADS // num_ranks)  # per process: the last engine's counts
        params = SamplingParams(temperature=0, max_tokens=output_len, ignore_eos=True)
        return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]

    return generate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--points", type=Point.parse, nargs="+", default=[Point(1, 32), Point(8, 128), Point(32, 256)])
    args = parser.parse_args()
    print_sums(2)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (folder / "config.json").write_text(json.dumps(SHAPES["llama-221m"]))
        vocab_size = read_model_config(folder).vocab_size
        engines = [generator(folder, args.points, num_ranks=ranks) for ranks in (2, 1)]
    for point in args.points:
        rates = []
        for pair in range(-1, args.pairs):  # the first pair warms up
            prompts = point.prompts(vocab_size, seed=pair + 1)
            rates.append([measure(generate, prompts, 64) for generate in engines])
        two, one = zip(*rates[1:], strict=True)
        ratios = sorted(a / b for a, b in zip(two, one, strict=True))
        print(
            f"{point}: two ranks {statistics.median(two):.1f} tokens/s, one rank {statistics.median(one):.1f}, ratio "
            f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


if __name__ == "__main__":
    main()
