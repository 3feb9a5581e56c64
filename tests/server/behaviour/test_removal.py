"""Deleting any optional folder leaves a server that answers every route: as before, or with 404, and never with 500."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from splitfuse.server.extension import declared

ROOT = Path(__file__).parents[3]
ENGINE = [str(path.parent.relative_to(ROOT)) for path in sorted((ROOT / "engine/extras").glob("*/__init__.py"))]
SERVER = [extension.folder for extension in declared() if (ROOT / extension.folder).is_dir()]
FOLDERS = [*ENGINE, *SERVER, "server/commands", "client"]


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> dict[str, Any]:
    """The answers of servers without each of the folders that are tested."""
    cases = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    folders = {item.callspec.params["folder"] for item in cases} - {"."}
    command = [sys.executable, str(ROOT / "tests/support/removal.py"), "server", *sorted(folders)]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split(" ", 1) for line in process.stdout.splitlines()]
    return {folder: json.loads(answer) for folder, answer in lines}


def test_there_are_twenty_of_them() -> None:
    assert len(FOLDERS) >= 20


@pytest.mark.sampled(3)
@pytest.mark.parametrize("folder", [".", *FOLDERS])
def test_the_rest_answers(folder: str, answers: dict[str, Any]) -> None:
    answer = answers[folder]
    assert "error" not in answer, answer["error"]
    assert answer["few"] == {"polled": [264, 558, 17], "events": 3, "ready": 200, "missing": 404}
    assert answer["broken"] == [], "this extension requires the folder, and does not say so"
    assert answer["refusal"] == "" or folder in answer["refusal"]
    statuses = answer["answers"]
    assert {name: status for name, status in statuses.items() if status >= "5"} == {}
    gone = set(answers["."]["shown"]) - set(answer["shown"])
    assert {name: status for name, status in statuses.items() if name in gone and status not in ("404", "405")} == {}
