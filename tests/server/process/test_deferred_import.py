"""Parts of torch that a server's start leaves out are there for all code that needs them."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_models import CONFIGS, HYBRIDS
from transformers import AutoModelForCausalLM

from splitfuse.server.process import deferred_import
from splitfuse.server.process.deferred_import import DEFERRED

IMPORT = "from splitfuse.server.process.deferred_import import defer_meta_kernels as defer"


def run(code: str, *arguments: str) -> str:
    """Return the output of a new process that defers the meta kernels."""
    command = [sys.executable, "-c", f"{IMPORT}; defer(); defer(); import torch, sys\n{code}", *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


is_tested = pytest.mark.skipif(
    deferred_import._torch_version() not in deferred_import.TESTED, reason="needs a tested torch"
)


@is_tested
def test_torch_computes_without_the_meta_kernels() -> None:
    code = f"print(torch.ones(2, 3).matmul(torch.ones(3)).tolist(), len(dir(sys.modules['{DEFERRED}'])) < 10)"
    assert run(code) == "[3.0, 3.0] True\n"


PLAN = """
from pathlib import Path
from splitfuse.engine.execution.models.planned_weights import WeightLayout, planned_weight_bytes
from splitfuse.engine.execution.models.registry import read_model_config

layout = WeightLayout(dtype=torch.bfloat16, quantization=None, is_gpu=False)
for folder in sorted(Path(sys.argv[1]).iterdir()):
    try:
        planned_weight_bytes(folder, read_model_config(folder), layout, max_model_len=64)
    except NotImplementedError as exc:
        print(folder.name, exc)
"""


@is_tested
def test_an_update_of_the_weights_of_each_model_is_planned_without_them(tmp_path: Path) -> None:
    for name, config in (CONFIGS | HYBRIDS).items():
        config.architectures = [type(AutoModelForCausalLM.from_config(config)).__name__]
        config.save_pretrained(tmp_path / name)
    assert run(PLAN, str(tmp_path)) == ""


@pytest.mark.thorough
def test_torch_compile_finds_them() -> None:
    code = "print(torch.compile(lambda x: x.cumsum(0) + 1, backend='aot_eager')(torch.ones(3)).tolist())"
    assert run(code) == "[2.0, 3.0, 4.0]\n"


@pytest.mark.thorough
def test_they_are_registered_once() -> None:
    code = f"import torch._dynamo; import {DEFERRED} as m; print(m.__spec__.loader is not None, 'meta_mm' in dir(m))"
    assert run(code) == "True True\n"


def test_a_process_with_torch_is_left_alone() -> None:
    code = f"import sys, torch; {IMPORT}; before = list(sys.meta_path); defer(); print(sys.meta_path == before)"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True).stdout == b"True\n"


def test_a_version_that_was_not_tested_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    version = torch.__version__.partition("+")[0]
    assert deferred_import._torch_version() == version
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(deferred_import, "TESTED", frozenset({f"{version}.1"}))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    before = list(sys.meta_path)
    deferred_import.defer_meta_kernels()
    assert sys.meta_path == before
    monkeypatch.setattr(deferred_import, "TESTED", frozenset({version}))
    deferred_import.defer_meta_kernels()
    assert len(sys.meta_path) == len(before) + 1
