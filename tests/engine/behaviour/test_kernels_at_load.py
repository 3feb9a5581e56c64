"""An engine compiles no kernel while it serves: loading launches all kernels of its steps."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

# Runs in its own process, because kernels here may be interpreted. Kernels are only named, not compiled or run.
PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from compile_report import OfflineDriver
import torch, triton
from triton.runtime import driver
from triton.runtime.jit import JITFunction
from splitfuse.engine import LLM, SamplingParams
from splitfuse.engine.execution.models.decoder import Decoder
from splitfuse.engine.execution.runner import cuda_graphs
from splitfuse.kernels import ops

class Repeater:
    def capture(self, work):
        work()
        return work

kernels = set()
triton.knobs.runtime.jit_cache_hook = lambda *, key, repr, **_: bool(kernels.add((repr, str(key)))) or True
JITFunction.__getitem__ = lambda self, grid: lambda *args, **options: self.run(
    *args, grid=grid, warmup=True, **options)
driver.set_active(OfflineDriver(90))
ops._BACKEND_OF_DEVICE["cpu"] = "cuda"
compute = Decoder.logits
Decoder.logits = lambda self, hidden: torch.zeros_like(compute(self, hidden))  # of what no kernel has written
largest = ops.max_logits
ops.max_logits = lambda logits: tuple(map(torch.zeros_like, largest(logits)))
llm = LLM(sys.argv[2], dtype=sys.argv[4], device="cpu", async_scheduling=True, max_num_seqs=40,
          max_num_batched_tokens=256, load_format="dummy")
launcher = llm.engine.pipeline.launcher
if sys.argv[3] == "graphs":
    dtype = getattr(torch, sys.argv[4])
    launcher.use_graphs(Repeater(), sizes=cuda_graphs.graph_sizes(40), hidden_size=64, dtype=dtype)
launcher.rehearse()
ahead = set(kernels)
launcher.capture_graphs()
sample = ops.gumbel_argmax
ops.gumbel_argmax = lambda logits, keys: sample(logits, keys) * 0
fields = [{}, {"temperature": 0}, {"top_k": 5}, {"top_p": 0.5}, {"n": 2}, {"presence_penalty": 0.5}, {"logprobs": 1}]
params = [SamplingParams(max_tokens=3 + i % 30, ignore_eos=True, **fields[i % 7]) for i in range(90)]
outputs = llm.generate([[2] * (1 + 5 * i) for i in range(90)], params)
assert all(output.outputs[0].finish_reason == "length" for output in outputs)
print(len(ahead), *sorted({name.partition("[")[0] for name, _ in kernels - ahead}))
"""

# Compiles for a GPU that need not exist, without running.
LATE = """
import sys
sys.path.insert(0, sys.argv[1])
from compile_report import OfflineDriver
import torch
from triton.runtime import driver
from splitfuse.kernels.cuda import norm
from splitfuse.kernels.cuda.compile_ahead import compile_ahead, when_compiled

def launch(size):
    with compile_ahead():
        norm.rms_norm(torch.zeros(2, size), torch.ones(size), eps=1e-6)
    return len(late)

late = []
driver.set_active(OfflineDriver(90))
launch(64)
when_compiled(lambda: late.append(1))
print(launch(64), launch(4096), launch(4096))
"""


pytest.importorskip("triton")


def run(program: str, *arguments: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", program, str(Path(__file__).parents[2] / "gpu"), *arguments]
    process = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout.split()


def test_a_kernel_that_is_compiled_late_is_counted() -> None:
    assert run(LATE) == ["0", "1", "1"]


@pytest.mark.parametrize(
    ("path", "dtype"),
    [
        ("graphs", "float32"),
        pytest.param("eager", "float32", marks=pytest.mark.thorough),
        pytest.param("eager", "bfloat16", marks=pytest.mark.thorough),
    ],
)
def test_every_kernel_of_a_step_has_been_launched_ahead(tiny_folder: str, path: str, dtype: str) -> None:
    num_ahead, *later = run(PROGRAM, tiny_folder, path, dtype)
    assert later == []
    assert int(num_ahead) >= 12
