"""First start on a machine: it says at once that the CPU library is built, and Ctrl-C ends the build too."""

import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from serving import run_cli

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs process groups and pidfds")

# A compiler that writes its id to a FIFO and never ends; its child holds the FIFO open too.
COMPILER = """#!/bin/sh
exec 3>>{fifo}
echo $$ >&3
sleep 1000 &
wait
"""


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Return an environment with an empty cache and a slow compiler."""
    os.mkfifo(tmp_path / "fifo")
    compiler = tmp_path / "c++"
    compiler.write_text(COMPILER.format(fifo=tmp_path / "fifo"))
    compiler.chmod(0o755)
    return {**os.environ, "CXX": str(compiler), "XDG_CACHE_HOME": str(tmp_path / "cache"), "SPLITFUSE_NATIVE": "1"}


@contextlib.contextmanager
def compiling(
    command: list[str], environment: dict[str, str], fifo: Path
) -> Iterator[tuple[subprocess.Popen[str], TextIO]]:
    """Start a command; yield the process, and the FIFO that compilers hold, once the first compiler runs."""
    whole = [sys.executable, "-m", "splitfuse.server", *command]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(whole, env=environment, text=True, start_new_session=True, **pipes) as process:
        try:
            with fifo.open() as compilers:
                yield process, compilers
        finally:
            process.kill()


@pytest.mark.parametrize(
    "command",
    [
        ["serve", "demo", "--port", "0"],
        ["generate", "demo", "-p", "Once"],
        ["bench", "offline", "--model", "llama-40m"],
    ],
    ids=lambda command: command[0],
)
def test_the_build_is_announced_and_ctrl_c_ends_it(
    command: list[str], environment: dict[str, str], tmp_path: Path
) -> None:
    with compiling(command, environment, tmp_path / "fifo") as (process, compilers):
        guard = os.pidfd_open(os.getpgid(int(compilers.readline())))
        assert process.stderr is not None
        assert process.stderr.readline().startswith("splitfuse: building the CPU library for this processor, once: ")
        assert list(tmp_path.glob("cache/splitfuse/native/build-*"))
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        progress = process.stderr.read().splitlines()  # a line each 5 s
        assert [line for line in progress if not line.startswith("splitfuse: 0 of ")] == []
        compilers.read()  # to its end: no compiler and no child of one is left
        assert select.select([guard], [], [], 20)[0]
        os.close(guard)
    assert not list(tmp_path.glob("cache/splitfuse/native/build-*"))


@pytest.mark.parametrize(
    ("command", "num_lines"),
    [
        ("serve demo --port 0", 1),
        ("generate demo -p Once", 1),
        ("generate nobody/knows -p Once", 0),  # a model to fetch first
        ("generate demmo -p Once", 0),
    ],
)
def test_the_line_comes_before_torch(command: str, num_lines: int, environment: dict[str, str], tmp_path: Path) -> None:
    """The import of torch takes seconds, so here it fails: lines before the error came before torch."""
    (tmp_path / "torch.py").write_text("raise ImportError('torch comes now')")
    result = run_cli(*command.split(), "--device", "cpu", env={**environment, "PYTHONPATH": str(tmp_path)})
    *before, error = result.stderr.splitlines()
    assert [line.partition(" the CPU library ")[0] for line in before] == ["splitfuse: building"] * num_lines
    assert "torch comes now" in error
