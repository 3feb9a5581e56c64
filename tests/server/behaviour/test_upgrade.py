"""An older version is killed at a random moment; this one goes on with its results file, and each job has its text.

The older version is a commit of this history. SPLITFUSE_TEST_UPGRADES=50 does it 50 times.
"""

import os
import random
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from kept_results import ARGS, PROMPT, whole_result
from serving import ServerProcess

ROOT = Path(__file__).parents[3]
OLD = "3de4493c"
NUM_JOBS = 6
LONGEST_S = 0.5  # before the kill; a job of 150 tokens takes about as long


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment in which `splitfuse` is the older version."""
    folder = tmp_path_factory.mktemp("old")
    tree = folder / "splitfuse"
    tree.mkdir()
    archive = subprocess.run(["git", "-C", ROOT, "archive", OLD], capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"needs {OLD} in the history of this checkout")
    subprocess.run(["tar", "-x", "-C", tree], input=archive.stdout, check=True)
    # Without the library, whose build takes a minute.
    return {"PYTHONPATH": str(folder), "SPLITFUSE_NATIVE": "0"}


def jobs(url: str) -> list[str]:
    with httpx.Client(base_url=url, timeout=60) as client:
        bodies = ({"prompt": PROMPT, "max_tokens": 25 * number, "temperature": 0} for number in range(1, NUM_JOBS + 1))
        return [client.post("/generate", json={**body, "ignore_eos": True}).json()["seq_id"] for body in bodies]


def texts(url: str, seq_ids: list[str]) -> list[Any]:
    with httpx.Client(base_url=url, timeout=60) as client:
        results = [whole_result(client, seq_id) for seq_id in seq_ids]
    return [(result["status"], result["text"]) for result in results]


@pytest.mark.timeout(7200)
def test_jobs_of_an_older_version_go_on(old: Mapping[str, str], tmp_path: Path) -> None:
    new = {"SPLITFUSE_NATIVE": "0"}
    with ServerProcess(*ARGS, env=new) as server:
        expected = texts(server.url, jobs(server.url))
    assert [status for status, _ in expected] == ["completed"] * NUM_JOBS
    rng, num_resumed = random.Random(7), 0
    for number in range(int(os.environ.get("SPLITFUSE_TEST_UPGRADES", "1"))):
        results = ("--results", str(tmp_path / f"{number}.db"))
        with ServerProcess(*ARGS, *results, env=dict(old)) as server:
            version = httpx.get(f"{server.url}/openapi.json").json()["paths"]
            assert "/fork" not in version, "the older version"
            seq_ids = jobs(server.url)
            time.sleep(rng.uniform(0, LONGEST_S))
            server.process.kill()
        with ServerProcess(*ARGS, *results, env=new) as server:
            assert texts(server.url, seq_ids) == expected, number
            attempts = [httpx.get(f"{server.url}/result/{seq_id}").json().get("attempt", 1) for seq_id in seq_ids]
            num_resumed += max(attempts) > 1
    print(f"{num_resumed} kills amid work")
