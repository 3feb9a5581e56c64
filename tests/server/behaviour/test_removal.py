"""Deleting any optional folder leaves a server that answers POST /generate, polls and streams."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
FOLDERS = [
    *(
        str(path.parent.relative_to(ROOT))
        for part in ("engine", "server")
        for path in ROOT.glob(f"{part}/extras/*/__init__.py")
    ),
    *("server/commands", "client"),
]


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """The answers of servers without each of the folders."""
    command = [sys.executable, str(ROOT / "tests/support/removal.py"), "server", *FOLDERS]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split(" ", 1) for line in process.stdout.splitlines()]
    return {folder: json.loads(answer) for folder, answer in lines}


def test_there_are_twenty_of_them() -> None:
    assert len(FOLDERS) >= 20


@pytest.mark.parametrize("folder", FOLDERS)
def test_the_rest_answers(folder: str, answers: dict[str, Any]) -> None:
    assert answers[folder] == {"polled": [264, 558, 17], "events": 3, "ready": 200}
