"""Ops of an idle task offer their core, and give the same results."""

import os
import subprocess
import sys

import pytest

from splitfuse.kernels.cpu import build

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="idle tasks are Linux's"),
    pytest.mark.skipif(build.library() is None, reason="no native library"),
]
# A sched_yield of ours in front of glibc's counts the calls.
_PRELOADED = "int calls; int sched_yield(void) { calls++; return 0; }"
_PROGRAM = """
import contextlib, ctypes, hashlib, os, sys
import torch
from splitfuse.kernels import ops
from splitfuse.kernels.cpu import build
if sys.argv[1] == "idle":
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
build.library()  # notes the policy
with contextlib.suppress(PermissionError):  # a busy machine has no time for an idle task
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
torch.manual_seed(0)
x, weight = torch.randn(300, 512), ops.pack_linear(torch.randn(700, 512))
calls = ctypes.c_int.in_dll(ctypes.CDLL(None), "calls")
calls.value = 0
outputs = [ops.linear(x, weight) for _ in range(20)]
print(hashlib.sha256(outputs[-1].numpy().tobytes()).hexdigest(), calls.value)
"""


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> str:
    library = tmp_path_factory.mktemp("yields") / "yields.so"
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    try:
        subprocess.run(command, input=_PRELOADED, text=True, check=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    return str(library)


def run(kind: str, preloaded: str) -> tuple[str, int]:
    settings = os.environ | {"LD_PRELOAD": preloaded, "OMP_NUM_THREADS": "1"}
    result = subprocess.run([sys.executable, "-c", _PROGRAM, kind], env=settings, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    digest, calls = result.stdout.split()
    return digest, int(calls)


def test_an_idle_task_offers_its_core_and_its_bits_are_equal(preloaded: str) -> None:
    normal, num_normal = run("normal", preloaded)
    idle, num_idle = run("idle", preloaded)
    assert idle == normal
    assert num_normal == 0
    assert num_idle > 5  # at most one per 100 us of 20 products, 0.2 GFLOP each
