"""Deleting any extra leaves an engine that answers."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
EXTRAS = sorted(path.parent.name for path in (ROOT / "engine/extras").glob("*/__init__.py"))
NEEDED_FOR = {
    "deadlines": "ttft_ms", "disk_cache": "prefix_cache_dir", "lora": "enable_lora",
    "parallel": "--tensor-parallel-size", "pooling": "pooler_config", "simulation": "record",
    "spec_decode": "speculative_config", "transformers_impl": "--model-impl transformers", "weight_updates": "sleep",
}  # fmt: skip


@pytest.fixture(scope="module")
def answers(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Answers of engines without each of the extras that are tested."""
    cases = [item for item in request.session.items if item.path == request.path and hasattr(item, "callspec")]
    folders = [f"engine/extras/{item.callspec.params['extra']}" for item in cases]
    command = [sys.executable, str(ROOT / "tests/support/removal.py"), "engine", *folders]
    process = subprocess.run(command, capture_output=True, text=True, check=True)
    lines = [line.split(" ", 1) for line in process.stdout.splitlines()]
    return {folder.rpartition("/")[2]: json.loads(answer) for folder, answer in lines}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("extra", EXTRAS)
def test_the_rest_generates_and_what_needs_it_says_so(extra: str, answers: dict[str, Any]) -> None:
    refusal = f"{needed_for} needs engine/extras/{extra}, which" if (needed_for := NEEDED_FOR.get(extra)) else ""
    assert answers[extra]["lengths"] == [3, 3]
    assert refusal in answers[extra]["refusal"]
    assert bool(answers[extra]["refusal"]) is bool(refusal)
