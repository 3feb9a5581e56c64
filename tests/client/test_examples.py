"""The examples run unchanged. Programs of the tutorials are run by tests/server/behaviour/test_tutorials.py."""

import runpy
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "client" / "examples"


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"tiny_engine.py"}


def test_the_tiny_engine_mixes_chunks_and_decodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tiny_engine.py"])
    runpy.run_path(str(EXAMPLES / "tiny_engine.py"), run_name="__main__")
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "request 0: 4 tokens, request 1: 12 tokens"
    assert second == "request 0: 1 tokens, request 1: 15 tokens"
