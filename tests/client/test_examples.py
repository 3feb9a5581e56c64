"""Every example runs unchanged against a real server, and prints the output that it promises."""

import json
import re
import runpy
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from splitfuse.client import Server

from .conftest import KEY

EXAMPLES = Path(__file__).parents[2] / "client" / "examples"
PRINTS = {
    "generate.py": r"32 tokens in \d+\.\d\d s, ended by length\nsubmitted as \S+: (queued|running|completed)\n.",
    "stream.py": r".\|.",
    "many.py": r"cat: '.*'\n(.*\n)*duck: '",
    "structured_output.py": r"choice: (yes|no)\nregex: 20\d\d-[01]\d-[0-3]\d\nschema: {'name': .*, 'age': \d+}",
    "openai_chat.py": r"call: get_weather {'city': '(Seoul|Recife)'}",
    "tiny_engine.py": r"request 0: 4 tokens, request 1: 12 tokens\nrequest 0: 1 tokens, request 1: 15 tokens\n",
    "in_process.py": r"\d+ prompt tokens -> '.*'\n\d+ prompt tokens -> ",
}


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTS) | {"tiny_server.py", "grpo.py"}


@pytest.mark.parametrize("name", PRINTS)
def test_an_example(
    name: str, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "openai_chat.py":
        pytest.importorskip("openai", reason="needs the package openai")
    monkeypatch.setenv("SPLITFUSE_BASE_URL", server.base_url)
    monkeypatch.setenv("SPLITFUSE_API_KEY", KEY)
    monkeypatch.setattr(sys, "argv", [name])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    assert re.search(PRINTS[name], capsys.readouterr().out)


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
