"""Memory that a model takes in a server beside its KV cache: `python tests/bench/memory.py FILE [--rounds 3]`.

A process loads the demo model, so that all modules are imported, then the file. What the process grows by is printed
with its ratio to the file's size. Pages of the cache that no request has used cost nothing.
"""

import argparse
import gc
import os
import re
import subprocess
import sys
from pathlib import Path


def resident_bytes() -> int:
    """Return the memory of this process that is not free."""
    from splitfuse.engine.language.workers.heap import return_freed_memory

    gc.collect()
    return_freed_memory()
    found = re.search(r"^Rss:\s+(\d+)", Path("/proc/self/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return 1024 * int(found[1])


def measure(file: str) -> int:
    """Return the bytes that this process grows by."""
    from splitfuse.engine.language.workers.heap import share_one_heap

    share_one_heap()  # as servers do
    from splitfuse.engine import LLM, SamplingParams

    settings = {"max_num_seqs": 8, "max_model_len": 1024}
    demo = LLM("demo", **settings)
    demo.generate("Once", SamplingParams(max_tokens=4))
    before = resident_bytes()
    model = LLM(file, **settings)
    after = resident_bytes()
    demo.close()
    model.close()
    return after - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.here:
        print(measure(args.file))
        return
    size = os.path.getsize(args.file)
    for _ in range(args.rounds):
        command = [sys.executable, __file__, args.file, "--here"]
        grown = int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout.split()[-1])
        print(f"{grown / 2**20:.1f} MiB for {size / 2**20:.1f}: {grown / size:.3f} times the file", flush=True)


if __name__ == "__main__":
    main()
