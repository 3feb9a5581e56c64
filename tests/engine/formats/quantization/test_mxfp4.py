"""MXFP4 checkpoints of gpt-oss: dequantization is transformers' to the bit, and so are the tokens."""

from pathlib import Path

import pytest
import torch
from mxfp4_files import save_mxfp4
from safetensors.torch import load_file, save_file
from tiny_models import greedy, save_model
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from splitfuse.engine import LLM, EngineConfig, SamplingParams
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.planned_weights import WeightLayout, planned_weight_bytes
from splitfuse.engine.execution.models.registry import read_model_config
from splitfuse.engine.formats.weights import SafetensorsSource
from splitfuse.kernels.quantize import powers_of_two

GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


def test_tokens_equal_transformers(tmp_path: Path) -> None:
    model, prompt = save_mxfp4(tmp_path), list(range(20, 80))
    expected = greedy(model, prompt, 16)
    llm = LLM(str(tmp_path), dtype="float32", device="cpu", max_num_batched_tokens=16)
    assert llm.generate({"prompt_token_ids": prompt}, GREEDY)[0].outputs[0].token_ids == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dequantization_is_transformers_to_the_bit(dtype: torch.dtype, tmp_path: Path) -> None:
    save_mxfp4(tmp_path)
    config = read_model_config(tmp_path)
    source = SafetensorsSource(tmp_path, dtype=dtype, quantization=config.quantization)
    tensors, name = load_file(tmp_path / "model.safetensors"), "model.layers.1.mlp.experts"
    theirs = convert_moe_packed_tensors(
        tensors[f"{name}.gate_up_proj_blocks"], tensors[f"{name}.gate_up_proj_scales"], dtype=dtype
    )
    for expert in range(config.hf_config["num_local_experts"]):
        for half, part in enumerate(("gate", "up")):
            weight = source.take_quantized(f"{name}.{expert}.{part}_proj.weight", (96, 64))
            assert weight is not None
            ours = weight.dequantized().to(dtype)
            assert torch.equal(ours.view(torch.uint8), theirs[expert, :, half::2].T.contiguous().view(torch.uint8))


def test_every_exponent() -> None:
    exponents = torch.arange(255, dtype=torch.uint8)
    assert powers_of_two(exponents).tolist() == [2.0 ** (number - 127) for number in range(255)]


@pytest.mark.parametrize("is_gpu", [False, True])
def test_planned_memory_counts_four_bits(is_gpu: bool, tmp_path: Path) -> None:
    save_mxfp4(tmp_path)
    config = read_model_config(tmp_path)
    layout = WeightLayout(dtype=torch.bfloat16, quantization=None, is_gpu=is_gpu)
    four = planned_weight_bytes(tmp_path, config, layout, max_model_len=EngineConfig().block_size)
    save_model("gpt-oss", tmp_path / "plain")
    plain = read_model_config(tmp_path / "plain")
    sixteen = planned_weight_bytes(tmp_path / "plain", plain, layout, max_model_len=EngineConfig().block_size)
    num_weights = 3 * 6 * 3 * 96 * 64  # layers, experts, matrices
    assert sixteen - four == pytest.approx(num_weights * (16 - 4.25) / 8, rel=0.02)


def test_blocks_of_another_shape_are_refused(tmp_path: Path) -> None:
    save_mxfp4(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.0.mlp.experts.down_proj_scales"
    save_file(tensors | {name: tensors[name][:, :-1].contiguous()}, path, metadata={"format": "pt"})
    with pytest.raises(ConfigError, match=r"down_proj_scales is torch.uint8 \[6, 63, 3\]"):
        LLM(str(tmp_path), device="cpu")
