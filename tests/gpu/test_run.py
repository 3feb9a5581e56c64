"""Scripts of `make gpu` and `make gpu-profile` without a GPU: all their parts on tiny shapes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import run
import torch
from bare_machine import without_packages
from step_profile import timeline
from switches import SWITCHES

HERE = Path(__file__).parent

# With a GPU the scripts themselves can run; and Triton 3.6, likely there, has an interpreter that fails with NumPy 2.4.
pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU; here run `make gpu`")


def script(name: str, *arguments: str, out: Path, **settings: str) -> "subprocess.CompletedProcess[str]":
    """Run a script by its path, from elsewhere, behind a foreign package `tests`, which some packages install, and
    without the packages that a GPU machine may lack."""
    decoy = out / "decoy" / "tests"
    decoy.mkdir(parents=True, exist_ok=True)
    (decoy / "__init__.py").touch()
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment |= {"OUT": str(out), "PYTHONPATH": str(decoy.parent), **settings}
    environment = without_packages(decoy.parent, environment)
    command = [sys.executable, str(HERE / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=out, env=environment, check=False)


@pytest.mark.parametrize("name", ["bench", "step_profile"])
def test_without_a_gpu_it_says_so_and_ends(tmp_path: Path, name: str) -> None:
    done = script(name, out=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], str, Path]:
    """Return gpu.json, the output, and the folder of a dry run, which takes a minute; `make gpu-dry` is one, too."""
    out = tmp_path_factory.mktemp("gpu")
    (out / "qwen3-0.6b.json").write_text("an earlier run's")
    done = script("run", "--dry", "--out", str(out), out=tmp_path_factory.mktemp("elsewhere"))
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads((out / "gpu.json").read_text()), done.stdout, out


@pytest.mark.thorough
def test_the_dry_run_goes_through_every_part(dry_run: tuple[dict[str, Any], str, Path]) -> None:
    document, printed, _ = dry_run
    assert [part["outcome"] for part in document["parts"]] == ["ok"] * 7
    results = document["kernels"]["results"]
    assert len(results) == 30
    assert all(result["error"] is None or result["error"] < 5e-3 for result in results)
    assert {choice["kernel"] for choice in document["kernels"]["tuned"]} >= {"decode", "prefill", "min_tokens"}
    assert {figure["unit"] for figure in document["tiny"]} == {"s", "ms", "tokens/s", ""}
    last = printed.split("gpu.json\n")[-1]
    assert all(result["name"] in last for result in (*results, *document["tiny"]))
    assert "failed" not in last
    assert set(document["kernel-tests"]["counts"]) == {"passed"}
    assert f"kernel tests: {document['kernel-tests']['counts']['passed']} passed" in last
    assert "greedy 1.000 sampled 1.000 changed 1.000" in last


@pytest.mark.thorough
def test_switches_are_measured_where_their_features_run(dry_run: tuple[dict[str, Any], str, Path]) -> None:
    names = [figure["name"].partition(": ")[2] for figure in dry_run[0]["tiny"]]
    greedy, sampled = "decode 1 x 64", "decode 1 x 64, sampled"
    assert {greedy, sampled, f"{greedy}, no few_rows", f"{sampled}, no dealt out filter"} <= set(names)
    assert [SWITCHES[name].numbers_of_rows for name in ("few_rows", "dealt out filter")] == [(1, 8), (1, 32)]


@pytest.mark.thorough
def test_correctness_comes_first(dry_run: tuple[dict[str, Any], str, Path]) -> None:
    names = [part["name"] for part in dry_run[0]["parts"]]
    models = ["end to end, tiny", "end to end, tiny fp8", "end to end, tiny int4"]
    assert names == ["kernel tests, compiled", "parity", "kernels", *models, "other tiles"]


@pytest.mark.thorough
def test_the_way_that_serves_is_compared_and_timed_from_graphs(dry_run: tuple[dict[str, Any], str, Path]) -> None:
    document, printed, _ = dry_run
    parity = {row["name"]: row for row in document["bench-parity"]["rows"]}
    assert document["bench-parity"]["good"]
    assert list(parity) == ["asynchronous", "graphs", "float32"]
    assert parity["graphs"]["replays"] > 50
    decodes = [figure for figure in document["tiny"] if " decode " in figure["name"]]
    assert len(decodes) == 3 + len(SWITCHES)  # greedy at 1 and 2 rows, sampled at 1
    # All steps but the few of the prompts.
    assert all(figure["replays"] >= 75 and figure["steps"] <= figure["replays"] + 6 for figure in decodes)
    assert f"{decodes[0]['replays']} of {decodes[0]['steps']} steps replayed" in printed


@pytest.mark.thorough
def test_nothing_of_an_earlier_run_is_left(dry_run: tuple[dict[str, Any], str, Path]) -> None:
    document, _, out = dry_run
    assert not (out / "qwen3-0.6b.json").exists()
    assert set(document) == {"parts", "kernel-tests", "kernels", "bench-parity", "tiny", "tiny-fp8", "tiny-int4"}


def test_a_cold_start_finds_an_empty_triton_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Path]] = []
    look = lambda self, *command, environment, **_: seen.append(list(Path(environment["TRITON_CACHE_DIR"]).iterdir()))  # noqa: E731
    monkeypatch.setattr(run.Session, "run", look)
    run.end_to_end(run.Session(seconds=10, folder=tmp_path, is_dry=True), "tiny", limit=30)
    assert seen == [[]]


@pytest.mark.thorough
@pytest.mark.parametrize("shape", ["tiny", "tiny-mixture"])
def test_steps_are_profiled_eagerly_and_from_graphs(tmp_path: Path, shape: str) -> None:
    done = script("step_profile", shape, "--device", "cpu", "--scale", "16", "--rows", "2", out=tmp_path)
    assert done.returncode == 0, done.stderr
    profile = json.loads((tmp_path / "profile.json").read_text())
    alone = "decode, graphs, no dependent launch"
    assert list(profile) == ["decode, graphs", alone, "mixed, graphs", "decode, eager", "mixed, eager"]
    steps = [line for line in done.stdout.splitlines() if line.endswith("steps replayed") and ": 2 x 1024: " in line]
    replayed = {line.partition(": ")[0]: line.split()[-5] for line in steps}
    assert replayed == {name: "0" if "eager" in name else "4" for name in profile}
    assert done.stdout.count("not seen decode: predicted") == 1  # its kernels are a GPU's
    # The CPU's stand-in for a graph copies its hidden states.
    assert len(profile["decode, graphs"]) > len(profile["decode, eager"])


def test_a_part_that_hangs_costs_its_limit_and_no_more(tmp_path: Path) -> None:
    done = script("run", "--dry", "--seconds", "1", out=tmp_path)
    outcomes = [part["outcome"] for part in json.loads((tmp_path / "gpu.json").read_text())["parts"]]
    assert outcomes == ["out of time"] * 7
    assert done.returncode == 1, "a dry run must come to its end"


def test_a_kernel_test_that_takes_its_process_down_costs_itself_alone(tmp_path: Path) -> None:
    file = tmp_path / "test_sample.py"
    file.write_text("""
import os, threading
import pytest
@pytest.mark.parametrize("number", range(4))
def test_product(number): assert number < 4
def test_illegal_access(): raise RuntimeError("CUDA error: an illegal memory access was encountered")
def test_behind_it(): pass
def test_dies(): os._exit(139)
def test_hangs(): threading.Event().wait()
def test_skipped(): pytest.skip("needs something")
def test_wrong(): assert 1 == 2
def test_last(): pass
""")
    done = script("kernel_tests", "--shards", "2", str(file), out=tmp_path, KERNEL_TEST_HANG_S="3")
    assert done.returncode == 1
    *_, last = done.stdout.splitlines()
    assert sorted(last.split(", ")) == ["1 skipped", "2 died", "2 failed", "6 passed"]
    bad = {line.split("::")[1] for line in done.stdout.splitlines() if line.startswith("BAD ")}
    assert bad == {"test_illegal_access", "test_dies", "test_hangs", "test_wrong"}
    failures = (tmp_path / "failures.txt").read_text()
    assert "illegal memory access" in failures
    assert "assert 1 == 2" in failures


def test_gaps_are_what_no_kernel_fills() -> None:
    spans = [("b", 10.0, 14.0), ("a", 0.0, 8.0), ("aside", 1.0, 12.0), ("c", 20.0, 21.0)]
    assert [(kernel.name, kernel.gap) for kernel in timeline(spans)] == [("a", 0), ("aside", 0), ("b", 0), ("c", 6)]
    assert [kernel.start for kernel in timeline(spans)] == [0, 1, 10, 20]
    assert timeline([]) == []
