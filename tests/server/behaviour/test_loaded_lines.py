"""A plain server on a CPU loads only what its requests need: code for other requests is imported at their place."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tables import table

ROOT = Path(__file__).parents[3]
# 20,755, and 2,100 for layers of several kinds, experts, rows that are pooled, prebuilt kernels, adapters, Gemma 4's
# caches, 490 of them for gaps and deadlines; 22 for one heap, torch's OpenMP on Arm and the door to the documentation;
# 15 for the choice of another package's attention; 20 for the dtype of the weights where a config names none.
# 1,250 for proofs of what may be deleted, limits of containers, a build that says how far it is, the boundary around
# advice, and the engine's declarations of its extensions. 1,750 for the chat's process, which starts before the first
# request, and what a template takes; published sampling values, names of models, forks, metrics from the arrival on.
MAX_LINES = 26_050
# Parts of the package that two requests of /generate on a CPU must not load.
FOREIGN = table(__file__, "foreign")


@pytest.fixture(scope="module")
def lines() -> dict[str, int]:
    """Lines by module."""
    program = [sys.executable, str(ROOT / "tests/support/loaded_lines.py")]
    output = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    found: dict[str, int] = json.loads(output.splitlines()[-1])
    return found


def test_two_requests_load_few_lines(lines: dict[str, int]) -> None:
    assert 10_000 < sum(lines.values()) <= MAX_LINES, sorted(lines, key=lambda name: -lines[name])


@pytest.mark.parametrize("name", FOREIGN)
def test_two_requests_do_not_load(name: str, lines: dict[str, int]) -> None:
    folder = ROOT / name.replace(".", "/")
    assert folder.exists() or folder.with_suffix(".py").exists()
    module = f"splitfuse.{name}"
    assert [loaded for loaded in lines if loaded == module or loaded.startswith(f"{module}.")] == []
