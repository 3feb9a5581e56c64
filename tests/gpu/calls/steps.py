"""Steps: commands of one call on a GPU's machine, each with its own limit, within ten minutes and eight files.

A step that fails, hangs or is missing costs itself alone. Output goes to $OUT/log.txt and to the screen; call.json has
every step's outcome as soon as it has ended. `keep` removes what is more than a machine gives back.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

GPU = Path(__file__).resolve().parents[1]
ROOT = GPU.parents[1]
MAX_FILES, MAX_BYTES = 8, 15 * 2**20


class Steps:
    """Steps in sequence until time is over."""

    def __init__(self, description: str, *, seconds: float, **paths: str) -> None:
        """Read the command line. `paths` are flags of its own and their help."""
        parser = argparse.ArgumentParser(description=description)
        parser.add_argument("--seconds", type=float, default=seconds, help="of the whole call")
        parser.add_argument("--out", type=Path, help="folder of the results; $OUT, or ./bench-gpu")
        parser.add_argument("--dry", action="store_true", help="tiny, on a CPU: a test of this script")
        for name, text in paths.items():
            parser.add_argument(f"--{name.replace('_', '-')}", type=Path, help=text)
        options = parser.parse_args()
        self.paths: dict[str, Path | None] = {name: getattr(options, name) for name in paths}
        self.is_dry: bool = options.dry
        self.folder: Path = (options.out or Path(os.environ.get("OUT") or "bench-gpu")).resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.outcomes: list[dict[str, object]] = []
        self._deadline = time.monotonic() + options.seconds
        self._log = (self.folder / "log.txt").open("w")
        imports = [str(ROOT / ".import"), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.environment = {
            **os.environ, "OUT": str(self.folder), "PYTHONUNBUFFERED": "1", "PYTHONPATH": os.pathsep.join(imports)
        }  # fmt: skip
        if self.is_dry:
            self.environment |= {"OMP_NUM_THREADS": "1"}

    @property
    def left(self) -> float:
        return self._deadline - time.monotonic()

    def say(self, text: str) -> None:
        print(text, flush=True)
        self._log.write(text + "\n")
        self._log.flush()

    def python(self, name: str, script: str, *arguments: str, limit: float, under: Sequence[str] = ()) -> bool:
        """Run a script of tests/gpu, perhaps under a tool."""
        return self.run(name, *under, sys.executable, str(GPU / script), *arguments, limit=limit)

    def run(self, name: str, *command: str, limit: float, environment: Mapping[str, str] | None = None) -> bool:
        """Run a command. True if it ended well within its limit and what is left."""
        start, limit = time.monotonic(), min(limit, self.left)
        self.say(f"\n== {name}, {self.left:.0f} s left")
        if limit <= 0:
            outcome = "out of time"
        elif shutil.which(command[0]) is None:
            outcome = f"{command[0]} is missing"
        else:
            outcome = self._outcome(command, limit, {**self.environment, **(environment or {})})
        self.note(name, time.monotonic() - start, outcome)
        return outcome == "ok"

    def _outcome(self, command: Sequence[str], limit: float, environment: Mapping[str, str]) -> str:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, text=True, errors="replace", start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert process.stdout is not None
        reader = threading.Thread(target=lambda: [self.say(line.rstrip()) for line in process.stdout or ()])
        reader.start()
        try:
            status = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            status = None
        process.wait()
        reader.join()
        return "out of time" if status is None else "ok" if status == 0 else f"failed ({status})"

    def note(self, name: str, seconds: float, outcome: str) -> None:
        self.outcomes.append({"name": name, "seconds": round(seconds, 1), "outcome": outcome})
        (self.folder / "call.json").write_text(json.dumps(self.outcomes, indent=1))

    def keep(self, *names: str) -> None:
        """Keep these files, the first ones of them, and log.txt and call.json; cut what is too large."""
        self._log.close()
        kept = ["log.txt", "call.json", *(name for name in names if (self.folder / name).exists())][:MAX_FILES]
        for path in self.folder.iterdir():
            if path.is_file() and path.name not in kept:
                path.unlink()
            elif path.is_file() and path.stat().st_size > MAX_BYTES:
                path.write_bytes(path.read_bytes()[-MAX_BYTES:])
        for outcome in self.outcomes:
            print(f"{outcome['outcome']!s:14} {outcome['seconds']!s:>7} s  {outcome['name']}")
        print(f"{self.folder}: {', '.join(kept)}")


def temporary() -> "tempfile.TemporaryDirectory[str]":
    return tempfile.TemporaryDirectory()
