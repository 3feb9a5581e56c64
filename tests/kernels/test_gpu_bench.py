"""`make gpu` and `make gpu-profile`, as far as they go without a card: all their parts on tiny shapes."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from gpu_profile import timeline

HERE = Path(__file__).parent
ROOT = HERE.parents[1]

# With a card they themselves can run; and Triton 3.6, likely there, has an interpreter that fails with NumPy 2.4.
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card: run `make gpu` itself")


def python(*arguments: str, out: Path) -> "subprocess.CompletedProcess[str]":
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "TRITON_INTERPRET")}
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**environment, "OUT": str(out)}, check=False
    )


@pytest.mark.parametrize("script", ["gpu_bench", "gpu_profile"])
def test_without_a_card_it_says_so_and_ends(tmp_path: Path, script: str) -> None:
    done = python("-m", f"tests.kernels.{script}", out=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


def test_the_dry_run_goes_through_every_part(tmp_path: Path) -> None:
    done = python("-m", "tests.kernels.gpu", "--dry", out=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    document = json.loads((tmp_path / "gpu.json").read_text())
    assert [part["outcome"] for part in document["parts"]] == ["ok"] * 5
    results = document["kernels"]["results"]
    assert len(results) == 18
    assert all(result["error"] is None or result["error"] < 5e-3 for result in results)
    assert {each["kernel"] for each in document["kernels"]["tuned"]} >= {"decode", "prefill", "min_tokens"}
    assert document["bench-parity"]["good"]
    assert {figure["unit"] for figure in document["tiny"]} == {"s", "ms", "tokens/s", ""}
    last = done.stdout.split("gpu.json\n")[-1]
    assert all(result["name"] in last for result in (*results, *document["tiny"]))
    assert "failed" not in last


def test_a_part_that_hangs_costs_its_limit_and_no_more(tmp_path: Path) -> None:
    done = python("-m", "tests.kernels.gpu", "--dry", "--seconds", "1", out=tmp_path)
    outcomes = [part["outcome"] for part in json.loads((tmp_path / "gpu.json").read_text())["parts"]]
    assert outcomes[0] == "out of time"
    assert set(outcomes) == {"out of time"}
    assert done.returncode == 0


def test_tests_run_without_pytest(tmp_path: Path) -> None:
    """A file of all that kernel tests use: parameters, fixtures, skips, and a failure that is told."""
    file = tmp_path / "test_sample.py"
    file.write_text("""
import pytest, torch
@pytest.fixture(autouse=True)
def _patched(monkeypatch): monkeypatch.setattr(torch, "marked", True) if hasattr(torch, "marked") else None
@pytest.mark.parametrize("a", [1, 2])
@pytest.mark.parametrize(("b", "c"), [(3, 4), (5, 6), (7, 8)], ids=str)
def test_product(a, b, c): assert a in (1, 2) and c == b + 1
def test_skipped(): pytest.skip("needs something")
def test_wrong(): assert 1 == 2
""")
    script = str(HERE / "run_tests.py")
    whole = python(script, str(file), out=tmp_path)
    assert whole.stdout.splitlines()[-1] == "6 passed, 1 skipped, 1 failed"
    assert "FAILED test_sample::test_wrong" in whole.stdout
    assert whole.returncode == 1
    parts = [python(script, "--shard", f"{index}/3", str(file), out=tmp_path).stdout for index in range(3)]
    assert sum(int(part.splitlines()[-1].split()[0]) for part in parts) == 6


def test_gaps_are_what_no_kernel_fills() -> None:
    spans = [("b", 10.0, 14.0), ("a", 0.0, 8.0), ("aside", 1.0, 12.0), ("c", 20.0, 21.0)]
    assert [(kernel.name, kernel.gap) for kernel in timeline(spans)] == [("a", 0), ("aside", 0), ("b", 0), ("c", 6)]
    assert [kernel.start for kernel in timeline(spans)] == [0, 1, 10, 20]
    assert timeline([]) == []
