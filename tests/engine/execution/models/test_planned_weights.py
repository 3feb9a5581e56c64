"""The planned bytes of weights are the bytes that the loaded model holds."""

from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_files import write_gguf
from held_bytes import held_bytes
from quantized_checkpoints import Case, awq, fp8, gptq, save_quantized
from real_configs import REAL_CONFIGS
from tiny_models import CONFIGS, HYBRIDS, save_model

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.execution.models.planned_weights import WeightLayout, planned_weight_bytes
from splitfuse.engine.execution.models.registry import parse_model_config, read_model_config
from splitfuse.engine.serving.loading import load_runner
from splitfuse.kernels.cpu import build

MAX_LEN = 32  # short, so that weights outweigh tables of angles
GPU = WeightLayout(dtype=torch.bfloat16, quantization=None, is_gpu=True)


def planned_and_held(path: Path, **fields: Any) -> tuple[int, int]:
    if build.library() is None:
        pytest.skip("needs a C++ compiler: without the CPU library nothing is padded, which shows in models this small")
    config = EngineConfig(model=str(path), device="cpu", num_kv_blocks=4, max_model_len=MAX_LEN, **fields)
    runner = load_runner(config, path)
    layout = WeightLayout(dtype=runner.loaded.dtype, quantization=config.quantization, is_gpu=False)
    model_config = read_model_config(path)
    return planned_weight_bytes(path, model_config, layout, max_model_len=MAX_LEN), held_bytes(runner.model)


@pytest.mark.parametrize("name", [*CONFIGS, *HYBRIDS])
def test_every_family(name: str, tmp_path: Path) -> None:
    save_model(name, tmp_path)
    for fields in ({"dtype": "float32"}, {"dtype": "bfloat16"}):
        planned, held = planned_and_held(tmp_path, **fields)
        assert planned == pytest.approx(held, rel=0.03)


@pytest.mark.parametrize("bits", ["int8", "int4"])
@pytest.mark.parametrize("name", ["llama-mha", "gpt2", "qwen3", "gemma2", "mixtral-window", "qwen3-moe"])
def test_weights_that_are_rounded_as_they_load(name: str, bits: str, tmp_path: Path) -> None:
    save_model(name, tmp_path)
    planned, held = planned_and_held(tmp_path, dtype="bfloat16", quantization=bits)
    assert planned == pytest.approx(held, rel=0.03)


@pytest.mark.parametrize("kind", [Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q8_0, Type.F16], ids=lambda kind: kind.name)
@pytest.mark.parametrize(("name", "error"), [("llama-gqa-tied", 0.03), ("qwen3-moe", 0.12)])
def test_gguf_files(name: str, error: float, kind: Type, tmp_path: Path) -> None:
    """Gate and up of tiny experts, 40 wide, are planned with padding of their own, and share it."""
    path = tmp_path / "model.gguf"
    write_gguf(path, name, kind=kind)
    planned, held = planned_and_held(path, dtype="bfloat16")
    assert planned == pytest.approx(held, rel=error)


@pytest.mark.parametrize(
    "case",
    [awq(4, 32), gptq(4, 32), gptq(4, 16, symmetric=True), gptq(8, -1), fp8(None)],
    ids=["awq", "gptq", "gptq-symmetric", "gptq-8", "fp8"],
)
def test_quantized_checkpoints(case: Case, tmp_path: Path) -> None:
    path = tmp_path / "model"
    save_quantized("llama-mha", case, path)
    planned, held = planned_and_held(path, dtype="bfloat16")
    assert planned == pytest.approx(held, rel=0.03)


# Publishers' numbers of parameters; on a GPU a tied head is the embedding.
@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("meta-llama/Llama-3.1-8B", 8_030_261_248),
        ("Qwen/Qwen2.5-0.5B", 494_032_768),
        ("openai-community/gpt2", 124_439_808),
    ],
)
def test_published_models_on_a_gpu(name: str, num_parameters: int, tmp_path: Path) -> None:
    config = parse_model_config(REAL_CONFIGS[name], generation={})
    angles = 2 * config.ropes[0].rotary_dim * torch.float32.itemsize
    assert planned_weight_bytes(tmp_path, config, GPU, max_model_len=2) == 2 * num_parameters + angles


def test_ranks_share_the_matrices(tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    config = read_model_config(tmp_path)
    one, two = (planned_weight_bytes(tmp_path, config, GPU, max_model_len=2, num_ranks=size) for size in (1, 2))
    assert one / 2 < two < 0.52 * one
