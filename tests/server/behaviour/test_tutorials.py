"""Tutorials: every block of every page runs, in order, in one folder, as a reader would type it.

A block ```sh start is a server that goes on in the background; ```sh kill ends it. Pages without one call the server of
the first tutorial.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from serving import ServerProcess

from splitfuse.client.hosts import free_port

FOLDER = Path(__file__).parents[3] / "server/docs/tutorials"
PAGES = sorted(FOLDER.glob("*.md"))
LOCAL = "localhost:8000"
MODEL = "demo --served-model-name smollm2 --dtype float32"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs bash and curl")


def blocks(page: Path) -> list[tuple[str, str]]:
    """Return the blocks of a page as (kind, text)."""
    return re.findall(r"^```([a-z]+(?: \w+)?)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def server() -> Iterator[ServerProcess]:
    with ServerProcess(*MODEL.split()) as it:
        yield it


def local(text: str, port: str) -> str:
    """Replace the model and the port by those of the test."""
    text = re.sub(r"(splitfuse serve) smollm2", rf"\1 {MODEL} --port {port}", text)
    text = re.sub(r"(splitfuse \w+) smollm2", r"\1 demo", text).replace('LLM("smollm2")', 'LLM("demo")')
    return text.replace(LOCAL, f"localhost:{port}")


def script(page: Path, port: str) -> str:
    """Return the page as one script for bash."""
    lines = ["set -euo pipefail"]
    for kind, text in blocks(page):
        text = local(text, port)
        if kind == "sh start":
            wait = f"until curl -sf localhost:{port}/ready > /dev/null; do kill -0 $server; sleep 0.1; done"
            lines += [f"{text.strip()} > server.log 2>&1 &", "server=$!", wait]
        elif kind == "sh kill":
            lines += [text.replace("%1", "$server"), "wait $server || true"]
        elif kind == "python":
            lines += ["python - <<'END'", text, "END"]
        else:
            lines.append(text)
    return "\n".join([*lines, 'if [ -n "${server:-}" ]; then kill $server || true; wait $server || true; fi'])


@pytest.mark.sampled(6)
@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_tutorial(page: Path, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    starts = "sh start" in {kind for kind, _ in blocks(page)}
    if LOCAL in page.read_text() and not starts:
        port = request.getfixturevalue("server").url.rpartition(":")[2]
    else:
        port = str(free_port("127.0.0.1"))
    if "openai" in page.read_text():
        pytest.importorskip("openai", reason="needs the package openai")
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command = ["bash", "-c", script(page, port)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


def test_the_notebook_runs_in_a_real_kernel() -> None:
    client = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel")
    notebook = pytest.importorskip("nbformat").read(FOLDER / "notebook.ipynb", as_version=4)
    for cell in notebook.cells:
        cell.source = cell.source.replace('LLM("smollm2")', 'LLM("demo")')
    client.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
    printed = ["".join(output.get("text", "") for output in cell.get("outputs", ())) for cell in notebook.cells]
    assert len(printed[-1]) > 20, "the stream's words"
    assert "text/plain" in notebook.cells[3].outputs[-1].data


def test_there_are_ten_at_least_and_each_has_something_to_run() -> None:
    assert len(PAGES) >= 10
    assert {kind for page in PAGES for kind, _ in blocks(page)} == {"sh", "sh start", "sh kill", "python"}
    assert [page.name for page in PAGES if not blocks(page)] == []


def test_printed_settings_of_agents_have_what_the_clients_tests_use() -> None:
    printed = (FOLDER.parents[1] / "commands/agents.json").read_text()
    tests = (Path(__file__).parents[2] / "clients/agents_cli.py").read_text()
    used = set(
        re.findall(
            r'"((?:ANTHROPIC|OPENAI)_[A-Z_]+)"|^ +f?\'?"?(?:\w+_)?(wire_api|env_key|base_url) =', tests, re.MULTILINE
        )
    )
    names = {name for names in used for name in names if name}
    assert len(names) >= 5
    assert {name for name in names if name not in printed} == set()
