"""The three calls without a GPU: their steps keep to their limits and files, and run bare."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def call(script: str, out: Path, *arguments: str) -> "tuple[subprocess.CompletedProcess[str], dict[str, str]]":
    """Run a script from elsewhere. Returns the process and the outcome of each step."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(HERE / script), "--out", str(out), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done, {step["name"]: step["outcome"] for step in json.loads((out / "call.json").read_text())}


def test_a_step_costs_no_more_than_itself(tmp_path: Path) -> None:
    script = tmp_path / "steps_of_a_test.py"
    script.write_text(f"""
import sys
sys.path.insert(0, {str(HERE)!r})
from steps import Steps
steps = Steps("A test.", seconds=20)
python = sys.executable
steps.run("hangs", python, "-c", "print('begun', flush=True); import threading; threading.Event().wait()", limit=1)
steps.run("fails", python, "-c", "raise SystemExit(3)", limit=10)
steps.run("misses", "no-such-profiler", limit=10)
steps.run("works", python, "-c", "print('done')", limit=10)
for number in range(12):
    (steps.folder / f"{{number}}.json").write_text("1")
steps.keep(*(f"{{number}}.json" for number in range(12)))
""")
    out = tmp_path / "out"
    out.mkdir()
    done, outcomes = call(str(script), out)
    assert list(outcomes.values()) == ["out of time", "failed (3)", "no-such-profiler is missing", "ok"]
    assert "begun" in (out / "log.txt").read_text()
    assert "done" in done.stdout
    assert len(list(out.iterdir())) == 8


@pytest.mark.thorough
def test_the_second_call(tmp_path: Path) -> None:
    _, outcomes = call("second.py", tmp_path, "--dry")
    assert set(outcomes.values()) == {"ok"}
    exact = json.loads((tmp_path / "exact.json").read_text())
    assert [row["changed"] for row in exact["rows"] if row["is_exact"]] == [0.0] * 6
    assert len(list(tmp_path.iterdir())) <= 8


@pytest.mark.thorough
def test_the_third_call_serves_and_comes_back(tmp_path: Path) -> None:
    done, outcomes = call("third.py", tmp_path, "--dry")
    assert set(outcomes.values()) == {"ok"}
    figures = done.stdout.rpartition("== figures")[2]
    assert figures.count("answers 4, failed 0") == 6
    assert figures.count("five ways to each answer: equal") == 4
    assert figures.count("as with plain steps: 3 of 3 texts") == 2
    assert "equal token by token beside 2 and 2 others: [3, 3] of 3" in figures
    assert "first token after" in figures
    assert "a result after kill -9 and a restart: the same" in figures
    assert figures.count("kernels_compiled_total{} 0,") == 3
    assert len(list(tmp_path.iterdir())) <= 8


@pytest.mark.thorough
def test_the_call_for_two_gpus(tmp_path: Path) -> None:
    _, outcomes = call("ranks.py", tmp_path, "--dry", "--seconds", "1000")
    assert set(outcomes.values()) == {"ok"}
    assert json.loads((tmp_path / "ranks-answers.json").read_text())[-1]["replays"] > 10
    assert len(list(tmp_path.iterdir())) <= 8
