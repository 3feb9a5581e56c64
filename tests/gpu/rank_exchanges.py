"""Sums over the ranks of several GPUs: NCCL's all-reduce beside a kernel in symmetric memory, by the number of tokens.

    python tests/gpu/rank_exchanges.py [--size 2] [--device cuda]

Microseconds of one of 20 sums of [tokens, 4096] in bfloat16 in a CUDA graph, and if the bits are those of parts that
are gathered and added in the order of the ranks, which symmetric memory promises and NCCL only for two ranks. Rows go
to $OUT/ranks-sums.json. Exits with 1 if symmetric memory is refused or unequal. On a CPU: gloo and a stand-in.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paths  # noqa: F401
import torch
from captured import Repeater
from torch import Tensor

from splitfuse.engine.execution.runner.cuda_graphs import CudaGraphCapturer
from splitfuse.engine.extras.parallel.group import Group, check_gpus, environment

WIDTH, NUM_SUMS = 4096, 20
NUM_TOKENS = (1, 2, 4, 8, 16, 32, 64)


def group_of(options: argparse.Namespace) -> Any:
    """Start the other ranks, each in a process that runs this script, and meet them."""
    is_gpu = options.device == "cuda"
    memory = options.memory or os.memfd_create("ranks")
    for rank in range(options.rank + 1, options.size if options.rank == 0 else 0):
        command = [sys.executable, *sys.argv, "--memory", str(memory), "--rank", str(rank)]
        subprocess.Popen(command, pass_fds=[memory], env={**os.environ, **(environment(rank) if is_gpu else {})})
    backend = "nccl+symmetric" if is_gpu else "gloo+symmetric"
    spec = Group(backend, options.size, options.size, in_order=True)
    group: Any = spec.join(memory, rank=options.rank, limit_s=60).group
    group.connect()
    return group


def microseconds(add: Callable[[Tensor], Tensor], x: Tensor, capturer: Any, turns: int) -> float:
    def work() -> None:
        for _ in range(NUM_SUMS):
            add(x)

    replay = capturer.capture(work)
    replay()
    wait(x)
    start = time.perf_counter()
    for _ in range(turns):
        replay()
    wait(x)
    return (time.perf_counter() - start) / turns / NUM_SUMS * 1e6


def wait(x: Tensor) -> None:
    if x.is_cuda:
        torch.cuda.synchronize()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=2)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--rank", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--memory", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "cpu":
        from gloo_ranks import PATCH
        from symmetric_stand_in import use_symmetric_memory

        use_symmetric_memory(PATCH)
    elif options.rank == 0:
        check_gpus(options.size, "nccl+symmetric")
    capturer, turns = (CudaGraphCapturer(torch.device("cuda")), 50) if options.device == "cuda" else (Repeater(), 1)
    group = group_of(options)
    small, group._small = group._small, None

    def all_reduced(x: Tensor) -> Tensor:
        group._add(x)
        return x

    rows = []
    for num_tokens in NUM_TOKENS:
        generator = torch.Generator().manual_seed(options.rank)
        x = torch.randn(num_tokens, WIDTH, generator=generator).bfloat16().to(options.device)
        expected = group.sum(x, width=WIDTH)
        row: dict[str, Any] = {"tokens": num_tokens}
        for name, add in {"nccl": all_reduced, "symmetric": small.sum}.items():
            row[f"{name} is equal"] = torch.equal(add(x.clone()), expected)
            row[f"{name}, us"] = round(microseconds(add, torch.zeros_like(x), capturer, turns), 2)
        row["faster"] = "nccl" if row["nccl, us"] <= row["symmetric, us"] else "symmetric"
        rows.append(row)
        if options.rank == 0:
            print(row, flush=True)
            Path(os.environ.get("OUT", "."), "ranks-sums.json").write_text(json.dumps(rows, indent=1))
    return int(not all(row["symmetric is equal"] for row in rows))


if __name__ == "__main__":
    sys.exit(main())
