"""Profile of a decode step and a mixed step, with kernels in order and the gaps between them: `make gpu-profile`.

    python tests/gpu/step_profile.py [SHAPE] [--rows 32] [--context 1024] [--quantization int4] [--cases 1] [--sampled]
    [--device cpu --scale 16]

A step runs with CUDA graphs captured first, and eager, after a few warm-up steps. A step's line says how long it took,
how long the GPU worked and idled, and how many steps were replayed; then come its kernels, summed by name.
$OUT/profile.json has every kernel with its start, or ./bench-profile.json. A kernel that is launched while the one
before it runs counts that one's rest as its own time. So decodes from graphs are also profiled without dependent
launch, and there predictions.py's time stands beside each kernel's.
"""

import argparse
import json
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from end_to_end import ALL_SHAPES, GREEDY, SAMPLED, EndToEnd, Model, Run
from predictions import CONSTANTS, Predicted, by_kernel, copy_speed, predict, step_us
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from splitfuse.engine import SamplingParams

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


class Profile(NamedTuple):
    kernels: list[Kernel]
    num_replayed: int  # of NUM_STEPS


def report(name: str, profile: Profile, predicted: Sequence[Predicted], copy: float) -> None:
    """Print a step's kernels; if there is a prediction, beside it."""
    kernels, num_replayed = profile
    if not kernels:
        print(f"{name}: no kernel was seen", flush=True)
        return
    whole = max(kernel.start + kernel.microseconds for kernel in kernels)
    idle = sum(kernel.gap for kernel in kernels)
    step = f"{whole / NUM_STEPS:.0f} us a step, {idle / whole:.1%} idle, {len(kernels) / NUM_STEPS:.0f} kernels"
    print(f"{name}: {step}, {num_replayed} of {NUM_STEPS} steps replayed")
    if predicted:
        num_launches = sum(kernel.launches for kernel in predicted)
        print(f"  predicted {step_us(predicted, copy):.0f} us and {num_launches} kernels at {copy / 1e9:.0f} GB/s")
    left = by_kernel(predicted, copy)
    others = left.pop("others", 0.0)
    sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for kernel in kernels:
        for place, value in enumerate((kernel.microseconds, 1.0, kernel.gap)):
            sums[kernel.name][place] += value / NUM_STEPS
    for kernel_name, (time, count, gap) in sorted(sums.items(), key=lambda item: -item[1][0])[:25]:
        share = NUM_STEPS * time / whole
        line = f"  {time:9.1f} us {share:6.1%}  {count:6.1f} x  gap {gap:7.1f} us  {kernel_name[:90]}"
        wanted = left.pop(kernel_name.strip("_"), None)
        print(line if wanted is None else f"{line}: predicted {wanted:.1f}, {time / wanted:.2f} of that")
    for kernel_name, wanted in left.items():
        print(f"  {'not seen':>12} {kernel_name}: predicted {wanted:.1f} us")
    if predicted:
        time = sum(time for name, (time, *_) in sums.items() if name.strip("_") not in CONSTANTS)
        print(f"  {time:9.1f} us of all others: predicted {others:.1f}")
    sys.stdout.flush()


def _take(run: Run, num_steps: int) -> None:
    for _, _ in zip(range(num_steps), run.steps(), strict=False):
        pass


def _profile(run: Run, device: str) -> Profile:
    before = run.counts["replays"]
    kernels = profiled(lambda: _take(run, NUM_STEPS), device)
    num_replayed = run.counts["replays"] - before
    run.core.abort_all()
    run.finish()
    return Profile(kernels, num_replayed)


def decode_step(
    each: EndToEnd, rows: int, context: int, device: str, *, graphs: bool, params: SamplingParams = GREEDY
) -> Profile:
    run = each.run(enforce_eager=not graphs)
    if graphs:
        run.capture({rows})
    for _ in range(rows):
        run.add(context, 100, params)
    _take(run, 8 + rows * context // (8192 // each.scale))  # all prompts, then some decodes
    return _profile(run, device)


def mixed_step(each: EndToEnd, rows: int, context: int, device: str, *, graphs: bool) -> Profile:
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
    return _profile(run, device)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("shape", nargs="?", default="llama-3.1-8b", choices=ALL_SHAPES)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--quantization", help="of the weights; predictions are of 16 bits, so there are none")
    parser.add_argument("--sampled", action="store_true", help="sampled decodes from graphs alone")
    parser.add_argument("--cases", type=int, default=len(CASES), help="the first ones of them")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--scale", type=int, default=1, help="divide all lengths: a test of this script")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("step_profile: no CUDA device, nothing to measure", file=sys.stderr)
        return 2
    shape: dict[str, Any] = ALL_SHAPES[options.shape]
    found: dict[str, Profile] = {}
    folder_name = os.environ.get("OUT")
    path = Path(folder_name) / "profile.json" if folder_name else Path("bench-profile.json")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(shape))
        model = Model(shape, copy=3e12, matmul=798e12)
        settings = {"device": options.device, "scale": options.scale, "quantization": options.quantization}
        each = EndToEnd(options.shape, model, Path(folder), **settings)
        sizes = (options.rows, options.context // options.scale, options.device)
        copy = copy_speed(torch.cuda.get_device_name(0) if options.device == "cuda" else "")
        predicted = [] if options.quantization else predict(shape, options.rows, options.context)
        for name, measure, graphs, switch in SAMPLED_CASE if options.sampled else CASES[: options.cases]:
            with each.without(switch) if switch else nullcontext():
                found[name] = profile = measure(each, *sizes, graphs=graphs)
            beside = predicted if switch else []
            report(f"{name}: {options.rows} x {options.context}", profile, beside, copy)
            path.write_text(json.dumps({name: [asdict(kernel) for kernel in found[name].kernels] for name in found}))
    return 0


CASES = (
    ("decode, graphs", decode_step, True, None),
    ("decode, graphs, no dependent launch", decode_step, True, "dependent launch"),
    ("mixed, graphs", mixed_step, True, None),
    ("decode, eager", decode_step, False, None),
    ("mixed, eager", mixed_step, False, None),
)
SAMPLED_CASE = (("decode, sampled, graphs", partial(decode_step, params=SAMPLED), True, None),)


if __name__ == "__main__":
    sys.exit(main())
