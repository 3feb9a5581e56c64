"""Benchmark of the kernels on the GPU beside the GPU's limits: a plain copy and a large matmul.

    python tests/gpu/bench.py [--tune SECONDS] [--dry]

Lines come as they are measured; results go to $OUT/kernels.json, or to ./bench-kernels.json. Exits with 2 without a
CUDA device.
"""

import argparse
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import paths  # noqa: F401
import torch

if TYPE_CHECKING:
    from kernel_bench import Result


def measure(path: Path, *, gpu: str) -> None:
    import triton  # only after the choice of the interpreter
    from bench_cases import run
    from kernel_bench import Bench

    print(f"{gpu}, torch {torch.__version__}, triton {triton.__version__}", flush=True)
    document = {"gpu": gpu, "torch": torch.__version__, "triton": triton.__version__}

    def save(results: "list[Result]") -> None:
        path.write_text(json.dumps({**document, "results": [asdict(result) for result in results]}, indent=1))

    compile_all()
    run(Bench(save))
    print(path, flush=True)


def compile_all() -> None:
    """Compile kernels in parallel: in sequence some 45 kernels would take half of the available time."""
    from bench_cases import run
    from kernel_bench import Rehearsal

    from splitfuse.kernels.cuda.compile_ahead import compile_ahead

    start = time.perf_counter()
    try:
        with compile_ahead() as kernels:
            run(Rehearsal())
        print(f"{len(set(map(id, kernels)))} kernels compiled in {time.perf_counter() - start:.1f} s", flush=True)
    except Exception as exc:  # the case at fault will raise the error again
        print(f"not all kernels compile: {exc!r}", flush=True)


def tune(path: Path, *, seconds: float) -> None:
    """Try other choices for loads that missed their goals in an earlier run, whose file gets the best choices."""
    from autotune import tune as choose
    from kernel_bench import Result

    document = json.loads(path.read_text())
    tuned = choose([Result(**result) for result in document["results"]], seconds=seconds)
    path.write_text(json.dumps({**document, "tuned": [asdict(choice) for choice in tuned]}, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tune", type=float, default=0.0, help="seconds to try other tiles for what missed its goal")
    parser.add_argument("--dry", action="store_true", help="tiny shapes, once, under the interpreter: a test of this")
    options = parser.parse_args()
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"
    elif not torch.cuda.is_available():
        print("bench: no CUDA device, nothing to measure", file=sys.stderr)
        return 2
    folder = os.environ.get("OUT")
    path = Path(folder) / "kernels.json" if folder else Path("bench-kernels.json")
    torch.manual_seed(0)
    if options.tune:
        tune(path, seconds=options.tune)
    else:
        measure(path, gpu="interpreter" if options.dry else torch.cuda.get_device_name())
    return 0


if __name__ == "__main__":
    sys.exit(main())
