"""The table of planted faults: each row names one line of the sources, and a test file."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROWS = json.loads((ROOT / "tests/tools/planted_faults.json").read_text())


@pytest.mark.parametrize(
    ("file", "old", "new", "test"), [(*row[1:4], row[5]) for row in ROWS], ids=[r[0] for r in ROWS]
)
def test_a_fault_can_be_planted(file: str, old: str, new: str, test: str) -> None:
    assert (ROOT / file).read_text().count(old) == 1, "the line has moved or changed: mend the table"
    assert old != new
    assert (ROOT / "tests" / test).exists()
