"""Plant one fault at a time in a copy of the project, and show whether its test file finds the fault.

`python tests/tools/planted_faults.py [NAME …]` runs all faults, or those whose names contain a NAME; `--list` prints
them. A test file was chosen by hand for each fault; the whole suite is never run. After a cut of the suite the same
faults must be found. Found: the tests fail with the fault. They pass without it (`--sound` checks this first).
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIMIT_S = 900


class Fault(NamedTuple):
    """One wrong line. `test`: below tests/, the file that found the fault when the list was made."""

    name: str
    file: str
    old: str
    new: str
    breaks: str
    test: str


FAULTS = [Fault(*row) for row in json.loads(Path(__file__).with_suffix(".json").read_text())]


def main() -> int:
    """Run the chosen faults. Returns 1 if one of them is not found."""
    parser = argparse.ArgumentParser(prog="planted_faults", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; without one, all")
    parser.add_argument("--list", action="store_true", help="print the faults and run none")
    parser.add_argument("--sound", action="store_true", help="run each test file without a fault first")
    parser.add_argument("--skip", nargs="*", default=(), help="parts of names to leave out")
    options = parser.parse_args()
    chosen = [
        fault
        for fault in FAULTS
        if (not options.names or any(name in fault.name for name in options.names))
        and not any(name in fault.name for name in options.skip)
    ]
    if options.list:
        for fault in chosen:
            print(f"{fault.name:22} {fault.file:55} {fault.breaks:60} {fault.test}")
        return 0
    with tempfile.TemporaryDirectory(prefix="splitfuse-faults-") as folder:
        copy = _copied(Path(folder) / "splitfuse")
        if options.sound:
            tests = sorted({fault.test for fault in chosen})
            print("without a fault:", _outcome(copy, tests), flush=True)
        outcomes = [_planted(copy, fault) for fault in chosen]
    print(f"{outcomes.count('found')} of {len(chosen)} found")
    return 0 if set(outcomes) <= {"found"} else 1


def _copied(copy: Path) -> Path:
    """Copy what git knows of the project."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\n")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, copy / name)
    return copy


def _planted(copy: Path, fault: Fault) -> str:
    path, begin = copy / fault.file, time.monotonic()
    text = path.read_text() if path.is_file() else ""
    if text.count(fault.old) != 1:
        outcome = "stale"  # the line has moved or changed: mend the table
    else:
        path.write_text(text.replace(fault.old, fault.new))
        outcome = _outcome(copy, [fault.test])
        path.write_text(text)
    print(f"{outcome:9} {time.monotonic() - begin:4.0f} s  {fault.name}: {fault.breaks} ({fault.test})", flush=True)
    return outcome


def _outcome(copy: Path, tests: list[str]) -> str:
    files = [f"tests/{name}" for name in tests]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files]
    environment = {**os.environ, "PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    with tempfile.TemporaryFile("w+") as output:
        try:
            code = subprocess.run(
                command, cwd=copy, env=environment, stdout=output, stderr=output, timeout=LIMIT_S, check=False
            ).returncode
        except subprocess.TimeoutExpired:
            return "timeout"
        output.seek(0)
        printed = output.read()
    if code not in (0, 1):
        print(printed[-2000:])
    return {0: "NOT FOUND", 1: "found"}.get(code, f"pytest: {code}")


if __name__ == "__main__":
    sys.exit(main())
