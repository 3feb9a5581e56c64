"""No schedule changes a bit of an answer, in any combination of dtype, weights, activations and cache.

`make exact` asks 240 prompts under 6 schedules of every combination, and 200 of SmolLM2 under 4.
"""

import itertools
import os
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch
from exactness import (
    Combination,
    combinations,
    num_different,
    questions,
    reference_answers,
    requantize,
    scheduled_answers,
)
from gguf import GGMLQuantizationType
from patched_library import patched_ops
from quantized_checkpoints import has_compressed_tensors

from splitfuse.engine import LLM, EngineConfig, SamplingParams
from splitfuse.engine.config import ResolvedConfig
from splitfuse.engine.config.named_models import GET_SMOLLM2, default_model, named_model
from splitfuse.engine.execution.models.resolved_model import ResolvedModel
from splitfuse.kernels import ops
from splitfuse.kernels.cpu import build
from splitfuse.kernels.cuda import device_info

pytestmark = pytest.mark.skipif(build.library() is None, reason="needs a C++ compiler for the native CPU library")

NUM_PROMPTS = int(os.environ.get("SPLITFUSE_EXACT_PROMPTS", "8"))
NUM_SCHEDULES = int(os.environ.get("SPLITFUSE_EXACT_SCHEDULES", "1"))
IS_WHOLE = "SPLITFUSE_EXACT_PROMPTS" in os.environ
COMBINATIONS = combinations()
SAMPLED = (
    "plain, bfloat16, activations none, cache auto",
    "Q4_0, bfloat16, activations none, cache int8",
    "int4, bfloat16, activations int8, cache auto",
    "qwen2-moe, float32",
    "qwen3-moe in Q4_0",
)


def num_changed(name: str, folder: Path, *, num_schedules: int = NUM_SCHEDULES) -> int:
    """Count the answers that random schedules change."""
    combination: Combination = COMBINATIONS[name]
    path, rng = combination.write(folder), random.Random(name)
    asked = questions(NUM_PROMPTS, rng)
    expected = reference_answers(path, combination, asked)
    return sum(num_different(scheduled_answers(path, combination, asked, rng), expected) for _ in range(num_schedules))


@pytest.mark.timeout(0)
@pytest.mark.parametrize("name", sorted(COMBINATIONS) if IS_WHOLE else SAMPLED)
def test_no_schedule_changes_a_bit(name: str, tmp_path: Path) -> None:
    if name.startswith(("w4a16", "w8a8")) and not has_compressed_tensors():
        pytest.skip("needs the package compressed-tensors")
    assert num_changed(name, tmp_path) == 0


# Faults that change the order of sums in one kernel only: (source, file, its text, the faulty text).
FAULTS = {
    "many rows": ("linear", "dense_panels.h", "step(k + i);", "step(M > 4 ? num_steps - 1 - k - i : k + i);"),
    "few rows": ("linear", "dense_panels.h", "step(k + i);", "step(M <= 4 ? num_steps - 1 - k - i : k + i);"),
    "prefill": (
        "attention_prefill",
        "attention_prefill.cpp",
        """for (int size = LANES / 2; size; size /= 2)
                for (int lane = 0; lane < size; lane++) chains[lane] += chains[lane + size];""",
        "for (int lane = 1; lane < LANES; lane++) chains[0] += chains[lane];",
    ),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kernel", FAULTS)
def test_another_order_of_sums_in_one_kernel_is_found(
    kernel: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, file, text, faulty = FAULTS[kernel]
    patched = patched_ops(tmp_path / "fault", [source], {file: (text, faulty)}, flags=["-O1"])
    monkeypatch.setattr(build, "library", lambda: patched)
    assert num_changed("plain, float32, activations none, cache auto", tmp_path, num_schedules=4) > 0


def test_the_reason_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = torch.device("cpu")
    assert ops.inexact_reason(cpu, torch.bfloat16, head_dim=64) is None
    assert "float16" in str(ops.inexact_reason(cpu, torch.float16, head_dim=64))
    assert "1024" in str(ops.inexact_reason(cpu, torch.float32, head_dim=1024))
    assert "--exact" in str(ops.inexact_reason(torch.device("cuda"), torch.bfloat16, head_dim=64))
    monkeypatch.setattr(build, "library", lambda: None)
    assert ops.inexact_reason(cpu, torch.bfloat16, head_dim=64) == "there is no native library"


@pytest.mark.parametrize(
    ("options", "inexact"), [({}, None), ({"dtype": "float16"}, None), ({"exact": False}, "--no-exact")], ids=str
)
def test_without_exactness_nothing_is_claimed(options: dict[str, Any], inexact: str | None) -> None:
    with LLM("demo", device="cpu", **{"dtype": "float32", **options}) as llm:
        assert llm.engine.runner.loaded.inexact == inexact


@pytest.mark.skipif(not IS_WHOLE or default_model() != "smollm2", reason=f"make exact, and SmolLM2: {GET_SMOLLM2}")
@pytest.mark.timeout(0)
@pytest.mark.parametrize("options", [{}, {"quantization_activations": "int8"}, {"kv_cache_dtype": "int8"}], ids=str)
@pytest.mark.parametrize("kind", ["as it is", "Q8_0", "BF16"])
def test_smollm2(kind: str, options: dict[str, str], tmp_path: Path) -> None:
    path = named_model("smollm2")
    assert path is not None
    if kind != "as it is":
        source, path = path, tmp_path / "model.gguf"
        requantize(source, path, GGMLQuantizationType[kind])
    words = ("the sea", "gravity", "bread", "the moon", "a bicycle", "chess", "rain", "music", "winter", "tea")
    asked = [f"{verb} {word} {number}" for verb, word in itertools.product(("Explain", "Praise"), words)
             for number in range(10)]  # fmt: skip
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=1)
    found = []
    for budget, num_seqs in ((512, 1), (512, 64), (64, 16), (17, 5)):
        with LLM(str(path), device="cpu", max_num_batched_tokens=budget, max_num_seqs=num_seqs, max_model_len=512,
                 num_kv_blocks=400, **options) as llm:  # fmt: skip
            outputs = llm.generate(asked, params)
        found.append([(output.outputs[0].token_ids, output.outputs[0].logprobs) for output in outputs])
    assert all(answer == found[0] for answer in found[1:])


class FakeChoices(NamedTuple):
    """ResolvedModel on a GPU, as far as `inexact_reason` reads it."""

    config: Any
    model: Any
    device: torch.device = torch.device("cuda")
    dtype: torch.dtype = torch.bfloat16


@pytest.mark.parametrize(
    ("options", "facts", "reason"),
    [
        ({}, {}, "--exact asks for one"),
        ({"exact": False}, {}, "--no-exact"),
        ({"exact": True, "quantization": "int8"}, {}, "not measured yet"),
        ({"exact": True}, {"quantization": "gptq"}, "quantized"),
        ({"exact": True}, {"is_recurrent": True}, "recurrent"),
        ({"exact": True}, {}, "not measured yet on compute capability 9.0"),
    ],
    ids=str,
)
def test_a_gpu_promises_nothing_before_it_was_measured(
    options: dict[str, Any], facts: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_info.EXACT, "is_on", bool(options.get("exact")))
    monkeypatch.setattr(device_info, "MEASURED_EXACT", frozenset())
    monkeypatch.setattr(device_info, "device_info", lambda device: device_info.H100)
    model = SimpleNamespace(
        architecture="LlamaForCausalLM", impl="native", head_dim=64, quantization=None, is_recurrent=False
    )
    vars(model).update(facts)
    choices: Any = FakeChoices(ResolvedConfig.of(EngineConfig(model="demo", **options), device="cuda"), model)
    assert reason in str(ResolvedModel.inexact_reason(choices))
    if facts:
        return
    monkeypatch.setattr(device_info, "MEASURED_EXACT", frozenset([90]))
    assert (ResolvedModel.inexact_reason(choices) is None) == options.get("exact", False)
