"""README.md is an invitation: short, and each of its commands and programs runs."""

import io
import re
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path

import httpx
import pytest
from serving import ServerProcess

from splitfuse.engine.execution.models.registry import MODELS
from splitfuse.server.commands.command_line import parse

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
PROGRAMS = [text for language, text in BLOCKS if language == "python"]
COMMANDS = [line.split("  #")[0].strip() for language, text in BLOCKS if language == "sh" for line in text.splitlines()]
LOCAL = "http://localhost:8000"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    results = tmp_path_factory.mktemp("readme") / "results.db"
    with ServerProcess("demo", "--served-model-name", "smollm2", "--dtype", "float32", "--results", str(results)) as it:
        yield it


def test_it_is_short() -> None:
    prose = re.sub(r"^```.*?^```|<picture>.*?</picture>", "", README, flags=re.MULTILINE | re.DOTALL)
    assert len(README.splitlines()) <= 150
    assert len(README.split()) <= 1000
    sentences = re.split(r"(?<=[.!?:])[*]*\s+|\n\n|\n- ", re.sub(r"^\|.*$|\]\([^)]*\)", "", prose, flags=re.MULTILINE))
    assert [sentence for sentence in sentences if len(sentence.split()) > 20] == []


def test_every_block_is_a_command_or_a_program() -> None:
    assert {language for language, _ in BLOCKS} == {"sh", "python"}
    known = ("make ", "curl ", "splitfuse ", "kill -9 ")
    assert [command for command in COMMANDS if not command.startswith(known)] == []


def test_it_counts_the_families() -> None:
    assert set(re.findall(r"(\d+) (?:model )?families", README)) == {str(len(MODELS))}


def test_every_link_leads_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)|src(?:set)?=\"([^\"]+)\"", README)
    relative = [link for pair in links for link in pair if link and not link.startswith("https://")]  # as in an sdist
    assert [link for link in relative if not (ROOT / link).exists()] == []


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("make ")])
def test_a_make_target(command: str) -> None:
    dry = subprocess.run([*shlex.split(command), "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "splitfuse serve" in dry.stdout or "pytest" in dry.stdout


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("splitfuse ")])
def test_a_command_line(command: str) -> None:
    assert parse(shlex.split(command.removesuffix("&"))[1:]).run


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith("curl ")])
def test_a_curl(command: str, server: ServerProcess) -> None:
    made = httpx.post(f"{server.url}/generate", json={"prompt": "Once", "max_tokens": 2}).json()
    local = command.replace("localhost:8000", server.url).replace("SEQ_ID", made["seq_id"])
    done = subprocess.run([*shlex.split(local), "-sf"], capture_output=True, text=True, check=True)
    assert re.search(r'"seq_id"|"choices"', done.stdout)


@pytest.mark.parametrize("program", PROGRAMS, ids=[text.splitlines()[0] for text in PROGRAMS])
def test_a_program(program: str, server: ServerProcess) -> None:
    if "openai" in program:
        pytest.importorskip("openai", reason="needs the package openai")
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(program.replace(LOCAL, server.url).replace('LLM("smollm2")', 'LLM("demo")'), {})
    assert len(printed.getvalue().strip()) > 3
