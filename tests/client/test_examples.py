"""The examples run unchanged. Programs of the tutorials are run by tests/server/behaviour/test_tutorials.py."""

import json
import runpy
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

EXAMPLES = Path(__file__).parents[2] / "client" / "examples"


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == {"tiny_engine.py", "tiny_server.py"}


def test_the_tiny_engine_mixes_chunks_and_decodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["tiny_engine.py"])
    runpy.run_path(str(EXAMPLES / "tiny_engine.py"), run_name="__main__")
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first == "request 0: 4 tokens, request 1: 12 tokens"
    assert second == "request 0: 1 tokens, request 1: 15 tokens"


def test_the_tiny_server_answers_and_streams() -> None:
    """Send two prompts at once through a socket, and read a result by id and as events."""
    command = [sys.executable, "-m", "uvicorn", "--app-dir", str(EXAMPLES), "tiny_server:app", "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            started = next(line for line in process.stderr if "running on" in line)
            base_url = started.partition("running on ")[2].split()[0]
            with httpx.Client(base_url=base_url, timeout=30) as http:
                bodies = [{"prompt": prompt, "temperature": 0} for prompt in ("Once upon a time", "The little dog")]
                ids = [http.post("/generate", json=body).json()["seq_id"] for body in bodies]
                with http.stream("GET", f"/result/{ids[0]}/stream") as response:
                    events = [json.loads(line[6:]) for line in response.iter_lines() if line.startswith("data: ")]
                assert events[-1]["finish_reason"] in ("length", "stop")
                assert len(events) > 2
                assert http.get(f"/result/{ids[0]}").json() == events[-1]
                assert http.get("/result/none").status_code == 404
        finally:
            process.terminate()
