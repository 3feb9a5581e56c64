"""Time the kernels on the card, each beside what the card can do at all: a plain copy and a large matmul.

    python tests/kernels/gpu_bench.py [--sweep] [--dry]

Lines come as they are measured; results go to $OUT/kernels.json, or to ./bench-kernels.json. Exits with 2 where there
is no CUDA device.
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import torch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sweep", action="store_true", help="also time the choices behind untuned constants")
    parser.add_argument("--dry", action="store_true", help="tiny shapes, once, under the interpreter: a test of this")
    options = parser.parse_args()
    if options.dry:
        os.environ["TRITON_INTERPRET"] = "1"
    elif not torch.cuda.is_available():
        print("gpu_bench: no CUDA device, nothing to measure", file=sys.stderr)
        return 2
    import triton  # not before the interpreter is chosen
    from bench_cases import run

    card = "interpreter" if options.dry else torch.cuda.get_device_name()
    print(f"{card}, torch {torch.__version__}, triton {triton.__version__}", flush=True)
    torch.manual_seed(0)
    results = run(sweep=options.sweep)
    folder = os.environ.get("OUT")
    path = Path(folder) / "kernels.json" if folder else Path("bench-kernels.json")
    document = {"card": card, "torch": torch.__version__, "triton": triton.__version__}
    path.write_text(json.dumps({**document, "results": [asdict(result) for result in results]}, indent=1))
    print(f"\n{path}", *results, sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
