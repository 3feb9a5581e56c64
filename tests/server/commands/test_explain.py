"""`splitfuse explain`: a recorded request in words and as JSON, and what it refuses."""

import json
from pathlib import Path

import pytest
from recorded_life import Life

from splitfuse.engine.extras.inspection.explanation import explain
from splitfuse.server.cli import main


@pytest.fixture(scope="module")
def life() -> Life:
    life = Life(3, busy_steps=40)
    life.recording = life.run()  # type: ignore[attr-defined]
    return life


@pytest.fixture
def path(life: Life, tmp_path: Path) -> Path:
    path = tmp_path / "recording.jsonl"
    path.write_text(life.recording)  # type: ignore[attr-defined]
    return path


def test_the_recording_explains_as_the_scheduler_had_it(
    life: Life, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for request in [one for one in life.requests if one.index == 0 and one.first_token_time is not None][:5]:
        assert main(["explain", str(path), str(request.arrival_order), "--json"]) == 0
        found = json.loads(capsys.readouterr().out)[0]
        made = explain(request.metrics(), now=0.0, finish_reason="ended")
        assert found["shares"] == pytest.approx(made.shares)
        told = [(entry["what"], entry["why"]) for entry in found["timeline"] if entry["what"] != "ended"]
        assert told == [(entry["what"], entry["why"]) for entry in made.timeline if entry["what"] != "ended"]


def test_in_words(life: Life, path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(path), "0"]) == 0
    out = capsys.readouterr().out
    assert " ms in all, " in out
    assert "arrived" in out


def test_one_that_was_cut_off_is_explained_up_to_there(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = path.read_text().splitlines()
    end = next(i for i, line in enumerate(lines) if '"done":3' in line)
    path.write_text("\n".join(lines[: end + 1]) + "\n")
    last = max(json.loads(line)["add"] for line in lines[: end + 1] if '"add"' in line)
    assert main(["explain", str(path), str(last), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)[0]
    assert sum(found["shares"].values()) == pytest.approx(found["e2e_s"])


@pytest.mark.parametrize(
    ("wanted", "text"), [("nothing", "has no request"), ("request-", None), ("9999", "number from 0")]
)
def test_an_id_that_is_no_ones(path: Path, one_line_here, wanted: str, text: str | None) -> None:
    """Recordings hold eight characters of an id, which these requests all share."""
    if text is not None:
        one_line_here(["explain", str(path), wanted], text)


def test_a_recording_of_another_version(path: Path, one_line_here) -> None:
    lines = path.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if '"rows"' in line)
    entry = json.loads(lines[first])
    entry["rows"][0][2] += 1
    lines[first] = json.dumps(entry)
    path.write_text("\n".join(lines) + "\n")
    one_line_here(["explain", str(path), "0"], "recorded by another version")
