"""Session of eight minutes on a GPU: `make gpu`, or

    python tests/gpu/run.py [--out FOLDER] [--seconds 480] [--dry]

The most valuable parts come first: kernel tests compiled, parity with the CPU path and of serving steps with plain
steps, the kernels beside the GPU's limits, two models end to end from an empty Triton cache, one with weights of e4m3,
other tiles for kernels that miss their goals. Needs torch, Triton, transformers and pytest, no installation. A part is
a process with its own limit, so a part that fails or hangs costs no more than itself. Lines come as they are
measured, a table last. Files go to FOLDER, $OUT or ./bench-gpu as they come: gpu.json has all results, failures.txt the
kernel tests' failures.

First look on a GPU that has not run this yet:
1. failures.txt, and `parity graphs` in the table: if either is wrong, no time means anything.
2. The figures `…, no few_rows`, `…, no dependent launch`, `…, no dealt out filter` beside the same decode with all of
   them: a feature that does not pay is switched off at its constant (named in switches.py).
3. The kernels that miss their goals, and the tiles that the last part found for them: lines for tile_configs.py.
4. `step_profile.py` on what is left: the kernels of a step in their order, with the gaps between them.
5. The predictions that only a card can judge (compile_report.py prints the shares of issue slots): int4 at 1 to
   64 rows at least 2 times 16 bits, int8 and e4m3 1.6, a decode over an e4m3 cache 1.5; two warps a program at 9 to 16
   rows; the kernel that prepares x, 1 to 3 us before each such product; sums of int4 codes as subnormal float16.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernel_tests import summary

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
SHAPES = ("llama-3.1-8b", "qwen3-0.6b", "tiny")
# What a model is served with beside 16 bits: --quantization, or an e4m3 cache. The best known first.
VARIANTS = ("fp8", "int4", "cache", "int8")
MODELS = (*SHAPES, "qwen3-30b-a3b", *(f"{shape}-{name}" for shape in ("llama-3.1-8b", "tiny") for name in VARIANTS))
FILES = ("kernel-tests.jsonl", "kernels.json", "bench-parity.json", *(f"{model}.json" for model in MODELS))


@dataclass
class Part:
    name: str
    seconds: float  # duration
    outcome: str  # ok, failed (exit status) or out of time


class Session:
    """Session that runs the parts in sequence until time is over."""

    def __init__(self, *, seconds: float, folder: Path, is_dry: bool) -> None:
        self.folder, self.is_dry = folder, is_dry
        self.parts: list[Part] = []
        self._deadline = time.monotonic() + seconds
        self._environment = {**os.environ, "OUT": str(folder), "PYTHONUNBUFFERED": "1"}
        if is_dry:
            self._environment |= {"TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}

    @property
    def left(self) -> float:
        return self._deadline - time.monotonic()

    def run(self, name: str, *command: str, limit: float, environment: Mapping[str, str] | None = None) -> None:
        """Run a script of this folder in its own process, and show its output at once."""
        start = time.monotonic()
        # The limits are a GPU's: a part takes longer interpreted, and beside other tests.
        outcome, limit = "out of time", min(limit * 10 if self.is_dry else limit, self.left)
        if limit > 0:
            print(f"\n== {name}, {self.left:.0f} s left", flush=True)
            process = subprocess.Popen(
                [sys.executable, str(HERE / command[0]), *command[1:]],
                cwd=ROOT,
                env={**self._environment, **(environment or {})},
                start_new_session=True,
            )
            outcome = self._wait(process, limit)
        self.parts.append(Part(name, time.monotonic() - start, outcome))
        self.write()

    def _wait(self, process: "subprocess.Popen[bytes]", limit: float) -> str:
        try:
            status = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the process group, children included
            process.wait()
            return "out of time"
        return "ok" if status == 0 else f"failed ({status})"

    def read(self, name: str) -> Any:
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None

    def write(self) -> None:
        """Write all results so far into one file."""
        names = [name for name in FILES if name.endswith(".json") and (self.folder / name).exists()]
        files = {name.removesuffix(".json"): self.read(name) for name in names}
        parts = [vars(part) for part in self.parts]
        document = {"parts": parts, "kernel-tests": self.kernel_tests(), **files}
        (self.folder / "gpu.json").write_text(json.dumps(document, indent=1))

    def kernel_tests(self) -> dict[str, Any]:
        """Return the counts of the kernel tests' outcomes, and the bad tests."""
        return summary(self.folder / FILES[0])


def end_to_end(session: Session, shape: str, *, limit: float, variant: str = "") -> None:
    results = (session.read("kernels.json") or {}).get("results", ())
    limits = {row["name"].split()[1]: row for row in results if row["name"].startswith("limit:")}
    command = ["end_to_end.py", shape, "--seconds", str(limit - 20)]
    if "copy" in limits and "matmul" in limits:
        command += ["--copy", str(limits["copy"]["gigabytes_per_second"])]
        command += ["--matmul", str(limits["matmul"]["teraflops"])]
    if variant:
        command += ["--kv-cache-dtype", "fp8"] if variant == "cache" else ["--quantization", variant]
    if session.is_dry:
        command += ["--device", "cpu", "--scale", "16"]
    # Kernels compiled by an earlier part or run would make a cold start look warm.
    with tempfile.TemporaryDirectory() as cache:
        name = " ".join(filter(None, ("end to end,", shape, variant)))
        session.run(name, *command, limit=limit, environment={"TRITON_CACHE_DIR": cache})


def run_all(session: Session) -> None:
    dry = ["--dry"] if session.is_dry else []
    device = ["--device", "cpu"] if session.is_dry else []
    some = ["--shards", "1", "tests/kernels/cuda/test_copy_blocks.py"] if session.is_dry else []
    session.run("kernel tests, compiled", "kernel_tests.py", *some, limit=150)
    session.run("parity", "parity.py", *device, limit=100)
    session.run("kernels", "bench.py", *dry, limit=100)
    for shape, limit in [("tiny", 80.0)] if session.is_dry else [("llama-3.1-8b", 110.0), ("qwen3-0.6b", 60.0)]:
        end_to_end(session, shape, limit=limit)
    # The CPU, where a dry run is, has no e4m3 cache.
    for variant in ("fp8", "int4") if session.is_dry else VARIANTS:
        end_to_end(session, "tiny" if session.is_dry else "llama-3.1-8b", limit=50, variant=variant)
    if not session.is_dry:
        end_to_end(session, "qwen3-30b-a3b", limit=60)
    seconds = min(session.left - 4, 90)
    session.run("other tiles", "bench.py", *dry, "--tune", str(max(seconds, 1)), limit=session.left)


def table(session: Session) -> list[str]:
    """Return a line per figure, with missed goals first."""
    lines = [f"{part.outcome:14} {part.seconds:6.1f} s  {part.name}" for part in session.parts]
    counts = session.kernel_tests()["counts"]
    lines.append(f"kernel tests: {', '.join(f'{count} {outcome}' for outcome, count in counts.items())}")
    kernels = session.read("kernels.json") or {}
    rows = []
    for row in kernels.get("results", ()):
        figure = f"{row['microseconds']:10.1f} us  {row['share']:16}"
        if row["rival"]:
            figure += f" {row['times_rival']:6.2f}x {row['rival']}"
        rows.append((row["met"], row["name"], figure, row["goal"]))
    for row in (row for model in MODELS for row in session.read(f"{model}.json") or ()):
        share = f"roofline {row['roofline']:.5g}" if row["roofline"] else ""
        share += f" {row['replays']}/{row['steps']} replays" if row["steps"] else ""
        rows.append((row["met"], row["name"], f"{row['value']:10.5g} {row['unit']:9} {share}", row["goal"]))
    order = {False: 0, True: 1, None: 2}
    for met, name, figure, goal in sorted(rows, key=lambda row: order[row[0]]):
        verdict = {False: f"MISSES {goal:.5g}", True: f"meets {goal:.5g}", None: ""}[met]
        lines.append(f"{name:44} {figure:60} {verdict}")
    for row in (session.read("bench-parity.json") or {}).get("rows", ()):
        replays = f" {row['replays']} replays" if row.get("replays") else ""
        shares = " ".join(f"{kind} {row[kind]:.3f}" for kind in ("greedy", "sampled", "changed") if kind in row)
        lines.append(f"parity {row['name']:20} {shares}{replays}")
    for row in kernels.get("tuned", ()):
        gain = row["before"] / row["microseconds"]
        lines.append(f"tile {row['load']:30} {row['kernel']} {row['capability']} {row['choice']} {gain:.2f}x")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, help="480 if not given, 1800 of a dry run")
    parser.add_argument("--dry", action="store_true", help="tiny shapes on the CPU and the interpreter: a test of this")
    parser.add_argument("--out", type=Path, help="the folder of the results; $OUT, or ./bench-gpu, if not given")
    options = parser.parse_args()
    folder: Path = options.out or Path(os.environ.get("OUT") or (tempfile.mkdtemp() if options.dry else "bench-gpu"))
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:  # files of an earlier run
        (folder / name).unlink(missing_ok=True)
    seconds = options.seconds or (1800.0 if options.dry else 480.0)
    session = Session(seconds=seconds, folder=folder, is_dry=options.dry)
    run_all(session)
    print(f"\n== {folder / 'gpu.json'}", *table(session), sep="\n", flush=True)
    # On a GPU's machine time may end before the last parts; a dry run is to show that each of them works.
    bad = {part.outcome for part in session.parts} - ({"ok"} if options.dry else {"ok", "out of time"})
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
