"""Recorded plans: bits equal to the ops', any number of rows and threads, a reason if there is no plan."""

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from splitfuse.kernels import ops
from splitfuse.kernels.cpu import build

pytestmark = pytest.mark.skipif(build.library() is None, reason="needs a C++ compiler for the native CPU library")
CPU = torch.device("cpu")
WIDTH = 256


def arrays(logits_indices: list[int]) -> ops.StepArrays:
    """Make the arrays of a step without attention."""
    nothing = torch.zeros(1, dtype=torch.int32)
    ragged = ops.RaggedBatch(nothing, nothing, nothing[None], 1, 1, 1)
    return ops.StepArrays(nothing.long(), nothing.long(), ragged, torch.tensor(logits_indices))


def layers(num_layers: int) -> Any:
    """Run a forward pass of products, norms, sums and activations."""
    weights = torch.randn(num_layers, WIDTH, WIDTH, generator=torch.Generator().manual_seed(0)) * WIDTH**-0.5
    packed = [ops.pack_linear(weight) for weight in weights]
    ones = torch.ones(WIDTH)

    def forward(x: Tensor, arrays: ops.StepArrays) -> Tensor:
        for weight in packed:
            normed, x = ops.add_rms_norm(ops.activation(ops.linear(x, weight), "gelu"), x, ones, eps=1e-5)
            x = (x + normed).mul_(0.5)
        return ops.rms_norm(x.index_select(0, arrays.logits_indices), ones, eps=1e-5)

    return forward


@pytest.mark.parametrize("num_threads", [1, 2, 3, 4])
def test_any_rows_and_threads(num_threads: int) -> None:
    forward = layers(3)
    plan = ops.record(forward, width=WIDTH, dtype=torch.float32, device=CPU)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        for num_tokens in (1, 5, 2, 300, 3, 301):
            x = torch.randn(num_tokens, WIDTH, generator=torch.Generator().manual_seed(num_tokens))
            step = arrays([num_tokens - 1, *range(0, num_tokens, 3)])
            assert torch.equal(plan.run(x, step), forward(x, step))
    finally:
        torch.set_num_threads(before)


def test_a_step_without_memory_spoils_no_later_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows of a step that fails are computed again, one by one."""
    forward = layers(2)
    plan = ops.record(forward, width=WIDTH, dtype=torch.float32, device=CPU)
    first, second = torch.randn(2, WIDTH), torch.randn(300, WIDTH)
    expected = [forward(first, arrays([1])), forward(second, arrays([299]))]
    assert torch.equal(plan.run(first, arrays([1])), expected[0])

    def no_memory(*args: Any, **options: Any) -> Tensor:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patch:
        patch.setattr(torch, "empty", no_memory)
        with pytest.raises(RuntimeError, match="can't allocate"):
            plan.run(second, arrays([299]))
    assert torch.equal(plan.run(second, arrays([299])), expected[1])


def test_what_cannot_be_recorded() -> None:
    def record(forward: Any) -> Any:
        return ops.record(forward, width=WIDTH, dtype=torch.float32, device=CPU)

    assert record(lambda x, _: x.softmax(dim=-1)) == "softmax is no native op"
    assert "must be Tensor" in record(lambda x, _: torch.relu(x))
    assert "columns" in record(lambda x, arrays: x.index_select(1, arrays.logits_indices))
    assert record(lambda x, _: x[0]).endswith("not subscriptable")
    assert ops.record(layers(1), width=WIDTH, dtype=torch.float32, device=torch.device("meta")).endswith("for meta")
    assert ops.record(layers(1), width=WIDTH, dtype=torch.float16, device=CPU).endswith("for float16")


def test_threads_without_a_core_sleep() -> None:
    """Four threads on one core meet 900 times. A thread that only spins at a barrier keeps the core for milliseconds
    from the thread that it waits for. Processor time is counted, so that a busy machine does not matter."""
    if not hasattr(os, "sched_setaffinity"):
        pytest.skip("needs Linux, to keep a process on one core")
    result = subprocess.run(
        [sys.executable, "-c", _ON_ONE_CORE], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 1.0


_ON_ONE_CORE = f"""
import os, sys, time
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})
sys.path.insert(0, {str(__file__).rsplit("/", 1)[0]!r})
import torch
from test_plan import WIDTH, CPU, arrays, layers
from splitfuse.kernels import ops
torch.set_num_threads(4)
plan = ops.record(layers(60), width=WIDTH, dtype=torch.float32, device=CPU)
x, step = torch.zeros(4, WIDTH), arrays([0])
plan.run(x, step)
start = time.process_time()
for _ in range(3):
    plan.run(x, step)
print(time.process_time() - start)
"""


def test_threads_that_share_a_processor_part() -> None:
    """The other processor is busy, so the kernel leaves both threads where they are for some 100 ms."""
    if not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2:
        pytest.skip("needs Linux and two processors")
    result = subprocess.run(
        [sys.executable, "-c", _ON_TWO_CORES], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.split() == ["parted", "free"]


_ON_TWO_CORES = f"""
import os, subprocess, sys
from pathlib import Path
sys.path.insert(0, {str(__file__).rsplit("/", 1)[0]!r})
import torch
from test_plan import WIDTH, CPU, arrays, layers
from splitfuse.kernels import ops
first, second = sorted(os.sched_getaffinity(0))[:2]
busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
try:
    os.sched_setaffinity(busy.pid, [second])
    before = set(os.listdir("/proc/self/task"))
    torch.set_num_threads(2)
    plan = ops.record(layers(60), width=WIDTH, dtype=torch.float32, device=CPU)
    x, step = torch.zeros(4, WIDTH), arrays([0])
    plan.run(x, step)
    others = [int(task) for task in set(os.listdir("/proc/self/task")) - before]
    os.sched_setaffinity(0, [first])
    for processors in ([first], [first, second]):
        for other in others:
            os.sched_setaffinity(other, processors)
    places, num_runs = set(), 0
    while second not in places and num_runs < 20:
        plan.run(x, step)
        num_runs += 1
        stats = [Path(f"/proc/self/task/{{other}}/stat").read_text() for other in others]
        places = {{int(stat.rsplit(")", 1)[1].split()[36]) for stat in stats}}
    print("parted" if second in places else "together", end=" ")
    print("free" if all(os.sched_getaffinity(other) == {{first, second}} for other in others) else "bound")
finally:
    busy.kill()
"""
