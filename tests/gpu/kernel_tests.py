"""Compiled kernel tests in parallel shards. A test that takes its process down costs only itself.

    python tests/gpu/kernel_tests.py [--shards 14] [FILE ...]

After an illegal memory access every CUDA call of a process fails. So a shard, a pytest with this file as its plugin,
ends itself after such a test, and after a test that hangs for a minute. The shard is restarted for the remaining tests.
Every outcome goes to $OUT/kernel-tests.jsonl as it comes, every failure to $OUT/failures.txt, the first on top.
On a GPU a test compiles its own kernels, about a second per kernel: shards compile in parallel.
"""

import argparse
import faulthandler
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from paths import HERE, ROOT

# Messages of torch and Triton for a lost context. Out of memory is not among them.
LOST_CONTEXT = re.compile(r"CUDA error|Triton Error \[CUDA\]|CUBLAS_STATUS_(EXECUTION_FAILED|INTERNAL_ERROR)")
HANG_S = float(os.environ.get("KERNEL_TEST_HANG_S", "60"))
OUT = Path(os.environ.get("OUT") or ".")
LOG, FAILURES = OUT / "kernel-tests.jsonl", OUT / "failures.txt"


def outcomes(log: Path = LOG) -> dict[str, str]:
    """Return the last outcome of tests (passed, skipped, failed, started if the process died), of shards (finished)."""
    lines = log.read_text().splitlines() if log.exists() else []
    return {row["test"]: row["outcome"] for row in map(json.loads, lines)}


def _append(path: Path, text: str) -> None:
    with path.open("a") as file:  # one write, so that shards' lines do not mix
        file.write(text)


def _log(test: str, outcome: str) -> None:
    _append(LOG, json.dumps({"test": test, "outcome": outcome}) + "\n")


# The plugin.


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    shard, num_shards = map(int, os.environ["KERNEL_TEST_SHARD"].split("/"))
    done = outcomes()
    items[:] = [item for item in items[shard::num_shards] if item.nodeid not in done]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    _log(item.nodeid, "started")
    faulthandler.dump_traceback_later(HANG_S, exit=True)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def pytest_sessionfinish(exitstatus: int) -> None:
    if exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        _log(os.environ["KERNEL_TEST_SHARD"], "finished")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when != "call" and report.passed:
        return
    _log(report.nodeid, report.outcome)
    if report.failed:
        _append(FAILURES, f"{report.nodeid}\n{report.longreprtext[-3000:]}\n\n")
        if LOST_CONTEXT.search(report.longreprtext):
            os._exit(3)


# The starter of shards.


def _start(shard: str, files: list[str]) -> "subprocess.Popen[bytes]":
    paths = [HERE, *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths)), "KERNEL_TEST_SHARD": shard}
    # Many shards on few cores: a second thread of a reference only waits. Other packages' plugins are not needed.
    environment |= {"OMP_NUM_THREADS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    # Neither the project's configuration nor tests/conftest.py: both name packages that a GPU machine may lack.
    options = ["-p", "kernel_tests", "-c", os.devnull, "--rootdir", str(ROOT)]
    options += ["--confcutdir", str(ROOT / "tests" / "kernels")]
    options += ["--import-mode=importlib", "-p", "no:cacheprovider", "-q", "--no-header", "--no-summary", "--tb=short"]
    return subprocess.Popen([sys.executable, "-m", "pytest", *options, *files], cwd=ROOT, env=environment)


def run_shard(shard: str, files: list[str]) -> None:
    """Start a shard again and again until its tests are through, or it makes no progress."""
    num_seen = -1
    while shard not in (seen := outcomes()) and len(seen) > num_seen:
        num_seen = len(seen)
        _start(shard, files).wait()


def summary(log: Path = LOG) -> dict[str, Any]:
    """Count the outcomes so far; a log of a run that was ended counts too."""
    found = outcomes(log)
    counts = Counter({"started": "died"}.get(outcome, outcome) for outcome in found.values() if outcome != "finished")
    bad = [test for test, outcome in found.items() if outcome in ("failed", "started")]
    return {"counts": dict(counts), "bad": bad}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shards", type=int, default=min(os.cpu_count() or 1, 14))
    parser.add_argument("files", nargs="*", default=[str(ROOT / "tests" / "kernels" / "cuda")])
    options = parser.parse_args()
    for path in (LOG, FAILURES):
        path.unlink(missing_ok=True)
    shards = [f"{index}/{options.shards}" for index in range(options.shards)]
    with ThreadPoolExecutor(options.shards) as pool:
        list(pool.map(lambda shard: run_shard(shard, options.files), shards))
    found = summary()
    for test in found["bad"]:
        print(f"BAD {test}")
    if FAILURES.exists():
        print(FAILURES.read_text()[:2000])
    print(", ".join(f"{count} {outcome}" for outcome, count in found["counts"].items()), flush=True)
    return int(bool(found["bad"]) or not found["counts"])


if __name__ == "__main__":
    sys.exit(main())
