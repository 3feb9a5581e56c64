"""Compilers run side by side, and none of them outlives its group, however the group's process ends."""

import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from splitfuse.kernels.cpu.compiler_group import CompilerGroup

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs process groups and pidfds")

# Compilers: one with a child, which both hold a FIFO open until they end, and one that fails.
ENDLESS = "exec 3>{fifo}; echo begun >&3; sleep 1000 & wait"
FAILING = "echo no such instruction >&2; exit 1"
# A process that compiles: it prints the group's id.
PROGRAM = """
import sys
from collections.abc import Sequence
from pathlib import Path
from splitfuse.kernels.cpu.compiler_group import CompilerGroup
with CompilerGroup(Path(sys.argv[1]), limit_s=60) as group:
    print(group._guard.pid, flush=True)
    group.run([["/bin/sh", "-c", sys.argv[2]]])
"""


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    folder = tmp_path / "build-1"
    folder.mkdir()
    return folder


def shell(script: str) -> list[str]:
    return ["/bin/sh", "-c", script]


def test_commands_run_side_by_side_and_their_ends_are_counted(scratch: Path, fifo: Path) -> None:
    ends: list[Sequence[str]] = []
    with CompilerGroup(scratch, limit_s=60) as group:
        group.run([shell(f"cat {fifo}"), shell(f"echo > {fifo}")], num_parallel=2, on_end=ends.append)
        group.run([shell(f"echo $TMPDIR > {scratch}/where")])
    assert sorted(ends) == [shell(f"cat {fifo}"), shell(f"echo > {fifo}")]
    assert (scratch / "where").read_text() == f"{scratch}\n"


def test_a_compiler_that_fails_ends_the_others(scratch: Path, fifo: Path) -> None:
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    commands = [shell(ENDLESS.format(fifo=fifo)), shell(f"{FAILING}")]
    with CompilerGroup(scratch, limit_s=60) as group, pytest.raises(OSError, match="/bin/sh: no such instruction"):
        group.run(commands, num_parallel=2)
    os.set_blocking(reader, True)
    with open(reader) as file:
        assert file.read() in ("", "begun\n"), "read to the end: nobody holds the other side"


def test_a_compiler_that_hangs_is_an_error(scratch: Path, fifo: Path) -> None:
    with CompilerGroup(scratch, limit_s=0.1) as group, pytest.raises(TimeoutError, match="said nothing"):
        group.run([shell(f"cat {fifo}")])


def test_a_killed_process_leaves_no_compiler_and_no_folder(scratch: Path, fifo: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(scratch), ENDLESS.format(fifo=fifo)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, fifo.open() as compiler:
        assert process.stdout is not None
        guard = os.pidfd_open(int(process.stdout.readline()))
        assert compiler.readline() == "begun\n"
        process.send_signal(signal.SIGKILL)
        assert compiler.read() == "", "the compiler and its child have ended"
        assert select.select([guard], [], [], 20)[0], "the guard has ended"
        os.close(guard)
    assert not scratch.exists()
