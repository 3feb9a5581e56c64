"""families.py without a GPU: its cases, its workers, and that it runs on a bare machine."""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import families
import pytest
from bare_machine import MISSING, without_packages
from family_cases import cases
from tiny_models import CONFIGS, HYBRIDS

from splitfuse.engine.core.outputs import TokenLogprobs

HERE = Path(__file__).parent
MAKERS = ("gguf", "compressed_tensors")  # packages that make some cases' files


def script(*arguments: str, out: Path, **settings: str) -> "tuple[subprocess.CompletedProcess[str], dict[str, Any]]":
    """Run the script from elsewhere, without the packages that a GPU machine may lack. Returns its rows, too."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment = without_packages(out, {**environment, "OUT": str(out), **settings}, (*MISSING, *MAKERS))
    command = [sys.executable, str(HERE / "families.py"), "--device", "cpu", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, cwd=out, env=environment, check=False)
    return done, json.loads((out / "families.json").read_text())["rows"]


def test_every_model_has_a_case() -> None:
    names = list(cases())
    assert set(names) >= {*CONFIGS, *HYBRIDS}
    assert len(names) > 180
    assert names[:4] == ["llama-gqa-tied", "qwen3", "qwen2", "mistral-window"], "the commonest first"


@pytest.mark.thorough
def test_it_runs_on_a_bare_machine(tmp_path: Path) -> None:
    names = ["llama-gqa-tied", "embed bert", "awq", "MXFP4", "w8a8"]
    done, rows = script("--workers", "2", "--only", *names, out=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    outcomes = {name: row["outcome"] for name, row in rows.items()}
    assert [outcomes[name] for name in names[:3]] == ["same"] * 3
    assert (rows["MXFP4"]["error"], rows["w8a8"]["error"]) == ("needs gguf", "needs compressed_tensors")
    assert rows["llama-gqa-tied"]["float32"]["replays"] > 0
    assert rows["llama-gqa-tied"]["bfloat16"]["outcome"] == "runs"
    assert done.stdout.splitlines()[-1].startswith("families: 2 skipped, 3 same; 5 cases, ")


# A worker whose cases end like those of a GPU may.
FAULTS = """
import os, sys, threading, types
sys.path.insert(0, sys.argv.pop(1))
sys.modules["family_cases"] = types.ModuleType("family_cases")  # takes seconds
import families
def run_case(name, *_):
    if name == "qwen2":
        os._exit(139)
    if name == "qwen3":
        threading.Event().wait()
    lost = {"outcome": "failed", "error": "RuntimeError: CUDA error: an illegal memory access was encountered"}
    return lost if name == "gemma" else {"outcome": "same", "error": str(os.getpid())}
families.run_case = run_case
families.main()
"""


def test_a_case_that_takes_its_process_down_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    faults = tmp_path / "faults.py"
    faults.write_text(FAULTS)
    start = families.Worker.__init__

    def with_faults(self: families.Worker, options: list[str], environment: dict[str, str]) -> None:
        start(self, options, environment)
        self._command[1:2] = [str(faults), str(HERE)]

    monkeypatch.setattr(families.Worker, "__init__", with_faults)
    monkeypatch.setattr(families, "OUT", tmp_path)
    monkeypatch.setattr(families, "CASE_LIMIT_S", 2.0)
    names = ["qwen2", "qwen3", "gemma", "llama-mha", "opt"]
    options = argparse.Namespace(device="cpu", dtypes=["float32"], workers=1)
    assert not families.run_all(names, options, time.monotonic() + 100)
    rows = json.loads((tmp_path / "families.json").read_text())["rows"]
    outcomes = ["died", "hangs", "failed", "same", "same"]
    assert {name: row["outcome"] for name, row in rows.items()} == dict(zip(names, outcomes, strict=True))
    assert rows["opt"]["error"] == rows["llama-mha"]["error"], "one process as long as it lives"
    assert "1 died, 1 hangs, 1 failed, 2 same" in capsys.readouterr().out
    assert "illegal memory access" in (tmp_path / "families.txt").read_text()


def answer(*tokens: tuple[int, float, float]) -> list[TokenLogprobs]:
    """Return tokens (id, logprob, gap to the next best)."""
    return [TokenLogprobs(token, logprob, ((token, logprob), (99, logprob - gap))) for token, logprob, gap in tokens]


def test_a_difference_is_a_near_tie_or_a_fault() -> None:
    right = answer((1, -0.1, 2.0), (2, -0.7, 1e-4), (3, -0.2, 1.0))
    tied = families.compare([answer((1, -0.1, 2.0), (7, -0.7, 1e-4), (8, -9.0, 1.0))], [right])
    assert (tied["outcome"], tied["tokens"], tied["ties"]) == ("near tie", pytest.approx(1 / 3, abs=1e-4), 1)
    wrong = families.compare([answer((4, -0.1, 2.0), *((token, -0.1, 1.0) for token in (2, 3)))], [right])
    assert (wrong["outcome"], wrong["tokens"]) == ("differs", 0)
    assert families.compare([answer((1, -0.11, 2.0))], [right[:1]])["outcome"] == "differs"
    assert families.compare([answer((1, math.nan, 2.0))], [right[:1]])["outcome"] == "differs"
    assert families.compare([right], [right])["outcome"] == "same"


def test_half_precision_is_judged_beside_the_cpus() -> None:
    on_cpu = {"outcome": "differs", "tokens": 0.8, "difference": 0.1}
    found = {share: {"outcome": "differs", "tokens": share, "difference": 0.1} for share in (0.1, 0.7)}
    for row in found.values():
        families.judge(row, on_cpu, is_exact=True)
    assert [row["outcome"] for row in found.values()] == ["differs", "runs"]
    not_finite = {"outcome": "differs", "tokens": 1.0, "difference": math.inf}
    families.judge(not_finite, on_cpu, is_exact=False)
    assert not_finite["outcome"] == "differs"
