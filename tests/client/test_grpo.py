"""The GRPO example trains the demo model for a step: rollouts and pushed weights by a server, logprobs to the bit."""

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

from splitfuse.client import serve

ROOT = Path(__file__).parents[2]
HAS_ONE_ORDER = (ROOT / "kernels" / "cpu" / "csrc" / "attention.h").exists()


@pytest.mark.filterwarnings("ignore")  # other packages' own
def test_a_step_of_grpo(tmp_path: Path) -> None:
    pytest.importorskip("trl", reason="needs trl and datasets: pip install trl datasets")

    spec = importlib.util.spec_from_file_location("grpo", ROOT / "client" / "examples" / "grpo.py")
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    sys.modules["grpo"] = example
    spec.loader.exec_module(example)
    model = tmp_path / "model"
    shutil.copytree(ROOT / "engine" / "demo_model", model, ignore=shutil.ignore_patterns("draft"))
    with serve(str(model), dtype="float32") as server:
        rollouts = example.train(str(model), steps=1, output=tmp_path / "output", client=server.client, max_tokens=4)
        assert server.client.generate("Once", max_tokens=1).weights_version == 1
    assert rollouts.num_tokens >= 8
    assert rollouts.num_different == 0 or not HAS_ONE_ORDER
