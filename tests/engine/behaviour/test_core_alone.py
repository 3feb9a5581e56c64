"""The core runs while all modules outside core, config, errors and checks are blocked, torch included."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
TESTS = ["tests/engine/core", *(f"tests/engine/behaviour/test_{name}.py" for name in ("worlds", "steps_in_flight"))]


def test_scheduler_and_worlds_run_with_all_else_blocked() -> None:
    """Run a few seeds; `make core` runs more seeds, the worlds that run ahead and the planted bugs."""
    command = [sys.executable, "-m", "pytest", "-q", "--core-alone", "--max-seeds", "1", "-p", "no:cacheprovider"]
    process = subprocess.run(
        [*command, "-m", "not slow", "-k", "not recorded and not happens_somewhere", *TESTS],
        cwd=ROOT,
        env={**os.environ, "SPLITFUSE_TEST_STEPS": "300"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-3000:]
