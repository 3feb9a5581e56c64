"""Linking torch ahead of its import: its library is there before torch is, and torch takes that one."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
from pathlib import Path
from splitfuse.server.process.torch_ahead import start_linking_torch

def places():
    return [line.split()[0] for line in Path("/proc/self/maps").read_text().splitlines() if "libtorch_cpu.so" in line]

start_linking_torch().join()
print("torch" in sys.modules)
linked = places()
import torch
print(bool(linked), places() == linked, int(torch.arange(4).sum()))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems call the library otherwise")
def test_torch_takes_what_was_linked() -> None:
    done = subprocess.run([sys.executable, "-P", "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout == "False\nTrue True 6\n"
