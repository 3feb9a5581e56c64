"""Writes server/docs/conformance.md from a run of the tests against what others have published.

`--print` leaves the page alone. Other arguments go to pytest. Fails if a test failed.
"""

import json
import os
import re
import sys
from collections import Counter
from datetime import date
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
PAGE = TESTS.parent / "server/docs/conformance.md"
TABLE = json.loads(Path(__file__).with_suffix(".json").read_text())
# What is counted -> the file of its tests, and a pattern of their names.
ROWS: dict[str, tuple[str, str]] = {row: (file, pattern) for row, file, pattern in TABLE["rows"]}
HEAD = """# See which published files open

`make conformance` runs the tests below against files that others have published, or that other packages write, and
writes this page. Vocabularies, ids and the list of models stand in a folder beside the clone, not in the project.
All {num_names} names of word splits that llama.cpp had on {names_date} are read, and {num_open} of the list's
{num_models} models open. Run of {date}:

| what | equal | failed | skipped |
|---|---:|---:|---:|
"""
REFUSED = """
## What is refused

Each by one line that says why:

"""


def rows_of(test_id: str) -> list[str]:
    """Return the rows that count a test."""
    file, _, test = test_id.partition("::")
    return [row for row, (path, pattern) in ROWS.items() if file.endswith(path) and re.match(pattern, test)]


class Outcomes:
    """Outcomes of a run's tests, by row. Tests that no row counts are left out, but for the small ones of the lists."""

    def __init__(self) -> None:
        self.counts = {row: Counter[str]() for row in ROWS}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if "/test_published_" in item.nodeid or rows_of(item.nodeid)]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count a test once: its call, or a set-up that did not pass."""
        if report.when != "call" and (report.when != "setup" or report.passed):
            return
        for row in rows_of(report.nodeid):
            self.counts[row][report.outcome] += 1


def page(outcomes: Outcomes) -> str:
    """Return the page."""
    sys.path[:0] = [str(TESTS / "engine/behaviour"), str(TESTS / "support")]
    from test_published_models import NOT_SERVED
    from test_published_models import ROWS as MODELS

    names = json.loads((TESTS / "support/word_split_names.json").read_text())
    head = HEAD.format(
        date=date.today(),
        num_names=len(names["names"]),
        names_date=names["date"],
        num_models=len(MODELS),
        num_open=len(MODELS) - len(NOT_SERVED),
    )
    lines = (
        f"| {row} | {counts['passed']} | {counts['failed']} | {counts['skipped']} |\n"
        for row, counts in outcomes.counts.items()
    )
    refused = (*TABLE["refused"], *(f"{name}: {why}" for name, why in NOT_SERVED.items()))
    return head + "".join(lines) + REFUSED + "".join(f"- {text}\n" for text in refused)


def main() -> int:
    """Run the tests and write the page."""
    os.environ["SPLITFUSE_TEST_ALL"] = "1"
    outcomes, files = Outcomes(), sorted({str(TESTS / "engine" / path) for path, _ in ROWS.values()})
    own = [argument for argument in sys.argv[1:] if argument != "--print"]
    code = int(pytest.main(["-q", "-rs", *files, *own], plugins=[outcomes]))
    text = page(outcomes)
    print(text)
    if "--print" not in sys.argv:
        PAGE.write_text(text, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
