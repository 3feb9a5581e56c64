"""Profile of a decode step and a mixed step, with kernels in order and the gaps between them: `make gpu-profile`.

    python tests/gpu/step_profile.py [SHAPE] [--rows 32] [--context 1024] [--device cpu --scale 16]

A step runs twice: eager, and with CUDA graphs captured first, after a few warm-up steps. A step's line says how long
the step took, and how long the GPU worked and idled; then come its kernels, summed by name. $OUT/profile.json
has every kernel with its start, or ./bench-profile.json.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from end_to_end import ALL_SHAPES, EndToEnd, Model, Run
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

NUM_STEPS = 4  # profiled in a row: under an overlapping engine a single step would begin in the previous one


@dataclass(frozen=True)
class Kernel:
    name: str
    start: float  # microseconds since the first kernel's start
    microseconds: float
    gap: float  # idle microseconds before the kernel


def timeline(spans: Iterable[tuple[str, float, float]]) -> list[Kernel]:
    """Return kernels in order, with idle gaps, from spans (name, begin, end) in any order, perhaps concurrent."""
    kernels: list[Kernel] = []
    first = free = None
    for name, begin, end in sorted(spans, key=lambda span: span[1]):
        first = begin if first is None else first
        kernels.append(Kernel(name, begin - first, end - begin, max(0.0, begin - free) if free is not None else 0.0))
        free = end if free is None else max(free, end)
    return kernels


def profiled(steps: Callable[[], None], device: str) -> list[Kernel]:
    kind = DeviceType.CUDA if device == "cuda" else DeviceType.CPU
    activities = [ProfilerActivity.CUDA] if device == "cuda" else [ProfilerActivity.CPU]
    with profile(activities=activities) as record:
        steps()
        if device == "cuda":
            torch.cuda.synchronize()
    events = [event for event in record.events() if event.device_type == kind]
    return timeline((event.name, event.time_range.start, event.time_range.end) for event in events)


def report(name: str, kernels: list[Kernel]) -> None:
    if not kernels:
        print(f"{name}: no kernel was seen", flush=True)
        return
    whole = max(kernel.start + kernel.microseconds for kernel in kernels)
    idle = sum(kernel.gap for kernel in kernels)
    print(f"{name}: {whole / NUM_STEPS:.0f} us a step, {idle / whole:.1%} idle, {len(kernels) / NUM_STEPS:.0f} kernels")
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for kernel in kernels:
        for place, value in enumerate((kernel.microseconds, 1.0, kernel.gap)):
            sums[kernel.name][place] += value / NUM_STEPS
    for kernel_name, (time, count, gap) in sorted(sums.items(), key=lambda item: -item[1][0])[:25]:
        share = NUM_STEPS * time / whole
        print(f"  {time:9.1f} us {share:6.1%}  {count:6.1f} x  gap {gap:7.1f} us  {kernel_name[:90]}")
    sys.stdout.flush()


def _take(run: Run, num_steps: int) -> None:
    for _, _ in zip(range(num_steps), run.steps(), strict=False):
        pass


def decode_step(each: EndToEnd, rows: int, context: int, device: str, *, graphs: bool) -> list[Kernel]:
    run = each.run(enforce_eager=not graphs)
    if graphs:
        run.capture({rows})
    for _ in range(rows):
        run.add(context, 100)
    _take(run, 8 + rows * context // (8192 // each.scale))  # all prompts, then some decodes
    kernels = profiled(lambda: _take(run, NUM_STEPS), device)
    run.core.abort_all()
    run.finish()
    return kernels


def mixed_step(each: EndToEnd, rows: int, context: int, device: str, *, graphs: bool) -> list[Kernel]:
    """Run decodes beside 2048 tokens of a long prompt."""
    run = each.run(max_num_batched_tokens=2048 // each.scale, enforce_eager=not graphs)
    if graphs:
        run.capture({rows})
    for _ in range(rows):
        run.add(context, 100)
    _take(run, 8 + rows * context // (2048 // each.scale))
    for _ in range(2):
        run.add(8192 // each.scale, 2)
    _take(run, 2)
    kernels = profiled(lambda: _take(run, NUM_STEPS), device)
    run.core.abort_all()
    run.finish()
    return kernels


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", nargs="?", default="llama-3.1-8b", choices=ALL_SHAPES)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=int, default=1, help="divide all lengths: a test of this script")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("step_profile: no CUDA device, nothing to measure", file=sys.stderr)
        return 2
    shape: dict[str, Any] = ALL_SHAPES[options.shape]
    found = {}
    folder_name = os.environ.get("OUT")
    path = Path(folder_name) / "profile.json" if folder_name else Path("bench-profile.json")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape))
        model = Model(shape, copy=3e12, matmul=798e12)
        each = EndToEnd(options.shape, model, Path(folder), device=options.device, scale=options.scale)
        sizes = (options.rows, options.context // options.scale, options.device)
        for graphs in (True, False):
            for kind, measure in (("decode", decode_step), ("mixed", mixed_step)):
                name = f"{kind}, {'graphs' if graphs else 'eager'}"
                kernels = measure(each, *sizes, graphs=graphs)
                report(f"{name}: {options.rows} x {options.context}", kernels)
                found[name] = [asdict(kernel) for kernel in kernels]
                path.write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
