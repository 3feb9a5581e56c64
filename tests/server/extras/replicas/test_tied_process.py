"""A program that ends with the process that started it, however that ends."""

import os
import select
import signal
import subprocess
import sys

import pytest

from splitfuse.server.extras.replicas.tied_process import tied

PARENT = """
import signal, subprocess, sys
from splitfuse.server.extras.replicas.tied_process import tied
signal.signal({}, signal.SIG_IGN)  # the child inherits this
child = subprocess.Popen(tied(["sleep", "600"]{}))
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: its kernel tells of the end of a parent")
@pytest.mark.parametrize(
    ("ignored", "option"),
    [(signal.SIGINT, ""), (signal.SIGTERM, ", end=9")],
    ids=["by default", "by a signal of choice"],
)
def test_it_ends_with_its_parent(ignored: signal.Signals, option: str) -> None:
    program = PARENT.format(int(ignored), option)
    with subprocess.Popen([sys.executable, "-P", "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert select.select([child], [], [], 60)[0]  # the child has ended
    os.close(child)


def test_it_becomes_the_command() -> None:
    done = subprocess.run(tied(["sh", "-c", "echo $0; exit 7", "told"]), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "told\n")
