import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

SCRIPT = Path(__file__).with_name("gpu_bench.py")


# With a card the script itself can run; and Triton 3.6, likely there, has an interpreter that fails with NumPy 2.4.
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card: run the script itself")


def test_without_a_card_it_says_so_and_ends() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_dry_run_writes_every_result(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--dry", "--sweep"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OUT": str(tmp_path)}, check=False
    )
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "kernels.json").read_text())["results"]
    assert len(results) == 17
    assert all(result["error"] is None or result["error"] < 5e-3 for result in results)
    assert all(result["name"] in done.stdout for result in results)
