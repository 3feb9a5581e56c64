"""A mixture of a GGUF file takes the memory of the file, and hardly more while it loads."""

import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from gguf import GGMLQuantizationType as Type
from mixture_files import Mixture, write_mixture

from splitfuse.kernels.cpu import build

LOAD = """
import sys

def memory(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1]) * 1024

from splitfuse.engine import LLM, SamplingParams
before = memory("VmRSS")
llm = LLM(sys.argv[1], num_kv_blocks=16, max_model_len=64)
print(memory("VmHWM") - before, memory("VmRSS") - before, llm.engine.runner.loaded.op_by_op)
[output] = llm.generate([[1, 2, 3]], SamplingParams(max_tokens=4, temperature=0, ignore_eos=True))
assert len(output.outputs[0].token_ids) == 4
"""


class Loaded(NamedTuple):
    """Bytes of a file, and those that loading it adds to the process."""

    file: int
    peak: int
    after: int


def load(path: Path, num_layers: int) -> Loaded:
    mixture = Mixture(num_layers=num_layers, hidden=1024, num_heads=16, num_experts=32, down_kind=Type.Q6_K)
    write_mixture(path, mixture)
    done = subprocess.run([sys.executable, "-c", LOAD, str(path)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    peak, after, op_by_op = done.stdout.split(maxsplit=2)
    assert op_by_op.strip() == "None"
    return Loaded(path.stat().st_size, int(peak), int(after))


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux" or build.library() is None, reason="needs Linux and a C++ compiler")
def test_a_mixture_takes_the_memory_of_its_file(tmp_path: Path) -> None:
    """The memory of three more layers, because a process of its own takes as much as this small model."""
    small, large = load(tmp_path / "small.gguf", 1), load(tmp_path / "large.gguf", 4)
    size = large.file - small.file
    assert large.after - small.after <= 1.1 * size
    assert large.peak - small.peak <= 1.2 * size
