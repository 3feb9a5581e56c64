"""Test of the null device: it runs only by hand, so nothing else shows a change of the server that it wraps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.sampled(6)
@pytest.mark.parametrize("fronts", [0, 1])
@pytest.mark.parametrize("endpoint", ["/v1/completions", "/generate", "/v1/chat/completions"])
def test_figures_come_as_one_line(endpoint: str, fronts: int) -> None:
    options = f"--streams 4 --tokens 20 --step-ms 2 --api-server-count {fronts} --json --endpoint"
    command = [sys.executable, str(Path(__file__).parent / "null_device.py"), *options.split(), endpoint]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    figures = json.loads(result.stdout)
    assert figures.keys() == {"tokens_per_s", "ms_per_step", "us_per_token"}
    assert figures["ms_per_step"] > 1.9, "no step is shorter than the device's"
    assert figures["us_per_token"].keys() == ({"front", "engine", "client"} if fronts else {"server", "client"})
