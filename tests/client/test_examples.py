"""Every example runs as it stands, against a real server, and prints what it promises."""

import re
import runpy
from pathlib import Path

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
    "in_process.py": r"\d+ prompt tokens -> '.*'\n\d+ prompt tokens -> ",
}


def test_every_example_is_tested() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTS)


@pytest.mark.parametrize("name", PRINTS)
def test_an_example(
    name: str, server: Server, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if name == "openai_chat.py":
        pytest.importorskip("openai", reason="needs the package openai")
    monkeypatch.setenv("SPLITFUSE_BASE_URL", server.base_url)
    monkeypatch.setenv("SPLITFUSE_API_KEY", KEY)
    runpy.run_path(str(EXAMPLES / name))
    assert re.search(PRINTS[name], capsys.readouterr().out)
