"""Table of `make clients`: a script's output becomes a row, and every script is run."""

import re
from pathlib import Path

import pytest
from catalog import CLIENTS, FOLDER
from outcome import HEADER, Outcome, write_row


@pytest.mark.parametrize(
    ("output", "exit_code", "cell"),
    [
        ("openai 3.5\nok    chat\nok    errors\n", 0, "2 of 2"),
        ("openai 3.5\nok    chat\nFAIL  errors\nTraceback: ok    so\n", 1, "1 of 2: errors failed"),
        ("openai 3.5\nok    chat\n", 1, "1 of 2: exit code 1 failed"),
        ("openai 3.5\n", 0, "0 of 1: exit code 0 failed"),
        ("", -6, "0 of 1: exit code -6 failed"),
    ],
)
def test_a_script_that_did_not_end_by_its_checks_has_failed(output: str, exit_code: int, cell: str) -> None:
    assert Outcome.of(output, exit_code=exit_code).cell == cell


def test_a_check_that_leaves_the_model_a_choice_is_no_proof() -> None:
    outcome = Outcome.of(
        "openai 3.5\nok    chat\n# 2 prompts\nok    tools_auto_accepted\nok    both_ways\n", exit_code=0
    )
    assert (len(outcome.passed), outcome.accepted) == (3, "tools auto")


def test_a_row_takes_its_place_and_the_others_stay(tmp_path: Path) -> None:
    path = tmp_path / "RESULTS.md"
    path.write_text(f"# Results\n\n{HEADER}\n|---|\n| b | 1 | 2 of 2 | | | day |\n| gone | 1 | | | | |\n")
    row = write_row(path, ("a", "2", "1 of 1", "", "", "day"), names=("a", "b"))
    write_row(path, ("b", "3", "2 of 2", "", "tools", "day"), names=("a", "b"))
    assert path.read_text().splitlines() == [
        "# Results",
        "",
        HEADER,
        "|---|---|---|---|---|---|",
        row,
        "| b | 3 | 2 of 2 |  | tools | day |",
    ]


def test_every_script_is_run_in_a_named_version() -> None:
    scripts = {path.name for ending in ("_sdk.py", "_cli.py", "_page.py") for path in FOLDER.glob(f"*{ending}")}
    scripts |= {path.name for path in FOLDER.glob("node/*.mjs")} - {"checks.mjs"}
    assert scripts == {client.script for client in CLIENTS}
    assert all(re.search(r"[=\w]@\d|==\d", wanted) for client in CLIENTS for wanted in client.requirements)
