"""All that a card can tell in eight minutes: `make gpu`, or from the root of the repository

    python -m tests.kernels.gpu [--seconds 480] [--dry]

Kernel tests compiled, parity with the CPU path, the kernels beside the card's limits, two models end to end, other
tiles for what misses its goal. Needs torch, triton and transformers, neither pytest nor an installation. Each part is a
process with a limit of its own, so that one that fails or hangs costs no more than itself; lines come as they are
measured, one table last. Files go to $OUT, or to ./bench-gpu: gpu.json has it all.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


@dataclass
class Part:
    name: str
    seconds: float  # it took
    outcome: str  # ok, failed (exit status) or out of time


class Session:
    """Runs the parts one after the other until the time is over."""

    def __init__(self, *, seconds: float, folder: Path, is_dry: bool) -> None:
        self.folder, self.is_dry = folder, is_dry
        self.parts: list[Part] = []
        self._deadline = time.monotonic() + seconds
        self._environment = {**os.environ, "OUT": str(folder), "PYTHONPATH": str(ROOT / ".import")}
        self._environment["PYTHONUNBUFFERED"] = "1"
        if is_dry:
            self._environment["TRITON_INTERPRET"] = "1"

    @property
    def left(self) -> float:
        return self._deadline - time.monotonic()

    def run(self, name: str, *commands: list[str], limit: float) -> None:
        """The commands side by side, in processes of their own; what they print appears at once."""
        start = time.monotonic()
        end = start + min(limit, self.left)
        if end <= start:
            self.parts.append(Part(name, 0.0, "out of time"))
            return
        print(f"\n== {name}, {self.left:.0f} s left", flush=True)
        processes = [
            subprocess.Popen([sys.executable, *command], cwd=ROOT, env=self._environment, start_new_session=True)
            for command in commands
        ]
        outcomes = [self._wait(process, end) for process in processes]
        bad = [outcome for outcome in outcomes if outcome != "ok"]
        self.parts.append(Part(name, time.monotonic() - start, bad[0] if bad else "ok"))

    def _wait(self, process: "subprocess.Popen[bytes]", end: float) -> str:
        try:
            status = process.wait(timeout=max(0.0, end - time.monotonic()))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # a group of its own, so its children too
            process.wait()
            return "out of time"
        return "ok" if status == 0 else f"failed ({status})"

    def read(self, name: str) -> Any:
        path = self.folder / name
        return json.loads(path.read_text()) if path.exists() else None


def check_kernels(session: Session) -> None:
    files = sorted(map(str, HERE.glob("cuda/test_*.py")))
    if session.is_dry:
        files = [str(HERE / "cuda" / "test_copy_blocks.py")]
    count = 2 if session.is_dry else min(os.cpu_count() or 1, 14)
    script = str(HERE / "run_tests.py")
    commands = [[script, "--shard", f"{index}/{count}", *files] for index in range(count)]
    session.run("kernel tests, compiled", *commands, limit=170)


def end_to_end(session: Session, shape: str, *, limit: float) -> None:
    results = (session.read("kernels.json") or {}).get("results", ())
    limits = {row["name"].split()[1]: row for row in results if row["name"].startswith("limit:")}
    command = [str(HERE / "gpu_end_to_end.py"), shape, "--seconds", str(limit - 20)]
    if "copy" in limits and "matmul" in limits:
        command += ["--copy", str(limits["copy"]["gigabytes_per_second"])]
        command += ["--matmul", str(limits["matmul"]["teraflops"])]
    if session.is_dry:
        command += ["--device", "cpu", "--scale", "16"]
    session.run(f"end to end, {shape}", command, limit=limit)


def run_all(session: Session) -> None:
    dry = ["--dry"] if session.is_dry else []
    bench = str(HERE / "gpu_bench.py")
    check_kernels(session)
    session.run("kernels", [bench, *dry], limit=120)
    device = ["--device", "cpu"] if session.is_dry else []
    session.run("parity with the CPU", [str(HERE / "gpu_parity.py"), *device], limit=60)
    for shape, limit in [("tiny", 30.0)] if session.is_dry else [("llama-3.1-8b", 130.0), ("qwen3-0.6b", 75.0)]:
        end_to_end(session, shape, limit=limit)
    if session.left > 5:
        session.run("other tiles", [bench, *dry, "--tune", str(min(session.left - 4, 90))], limit=session.left)


def table(session: Session) -> list[str]:
    """One line per figure: what misses its goal first."""
    lines = [f"{part.outcome:14} {part.seconds:6.1f} s  {part.name}" for part in session.parts]
    kernels = session.read("kernels.json") or {}
    rows = []
    for row in kernels.get("results", ()):
        figure = f"{row['microseconds']:10.1f} us  {row['share']:16}"
        if row["rival"]:
            figure += f" {row['times_rival']:6.2f}x {row['rival']}"
        rows.append((row["met"], row["name"], figure, row["goal"]))
    for path in sorted(session.folder.glob("*.json")):
        if path.name not in ("kernels.json", "bench-parity.json", "gpu.json"):
            for row in json.loads(path.read_text()):
                share = f"roofline {row['roofline']:.5g}" if row["roofline"] else ""
                rows.append((row["met"], row["name"], f"{row['value']:10.5g} {row['unit']:9} {share}", row["goal"]))
    order = {False: 0, True: 1, None: 2}
    for met, name, figure, goal in sorted(rows, key=lambda row: order[row[0]]):
        verdict = {False: f"MISSES {goal:.5g}", True: f"meets {goal:.5g}", None: ""}[met]
        lines.append(f"{name:44} {figure:60} {verdict}")
    for row in (session.read("bench-parity.json") or {}).get("rows", ()):
        lines.append(f"parity {row['name']:20} greedy {row['greedy']:.3f} drawn {row['drawn']:.3f}")
    for row in kernels.get("tuned", ()):
        gain = row["before"] / row["microseconds"]
        lines.append(f"tile {row['load']:30} {row['kernel']} {row['capability']} {row['choice']} {gain:.2f}x")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("--dry", action="store_true", help="tiny shapes on the CPU and the interpreter: a test of this")
    options = parser.parse_args()
    folder = Path(os.environ.get("OUT") or (tempfile.mkdtemp() if options.dry else "bench-gpu")).resolve()
    folder.mkdir(exist_ok=True)
    session = Session(seconds=options.seconds, folder=folder, is_dry=options.dry)
    run_all(session)
    lines = table(session)
    parts = [vars(part) for part in session.parts]
    paths = [path for path in sorted(folder.glob("*.json")) if path.name != "gpu.json"]
    files = {path.stem: json.loads(path.read_text()) for path in paths}
    (folder / "gpu.json").write_text(json.dumps({"parts": parts, **files}, indent=1))
    print(f"\n== {folder / 'gpu.json'}", *lines, sep="\n", flush=True)
    return int(any(part.outcome.startswith("failed") for part in session.parts))


if __name__ == "__main__":
    sys.exit(main())
