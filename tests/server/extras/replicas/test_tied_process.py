"""A program that ends with the process that started it, however that ends."""

import os
import select
import subprocess
import sys

import pytest

from splitfuse.server.extras.replicas.tied_process import tied

PARENT = """
import subprocess, sys
from splitfuse.server.extras.replicas.tied_process import tied
child = subprocess.Popen(tied(["sleep", "600"]))
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: its kernel tells of the end of a parent")
def test_it_ends_with_its_parent() -> None:
    with subprocess.Popen([sys.executable, "-P", "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
    assert select.select([child], [], [], 60)[0]  # the child has ended
    os.close(child)


def test_it_becomes_the_command() -> None:
    done = subprocess.run(tied(["sh", "-c", "echo $0; exit 7", "told"]), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (7, "told\n")
