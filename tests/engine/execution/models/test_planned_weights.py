"""The planned bytes of weights are the bytes that the loaded model holds."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Type
from gguf_files import write_gguf
from held_bytes import held_bytes
from quantized_cases import FORMS, random_weight
from quantized_checkpoints import (
    CASES,
    Case,
    awq,
    bitsandbytes,
    fp8,
    gptq,
    has_compressed_tensors,
    modelopt,
    save_quantized,
)
from real_configs import REAL_CONFIGS
from tiny_models import CONFIGS, HYBRIDS, save_model

from splitfuse.engine.config import EngineConfig
from splitfuse.engine.execution.models.planned_weights import ShapeSource, WeightLayout, planned_weight_bytes
from splitfuse.engine.execution.models.registry import model_class, parse_model_config, read_model_config
from splitfuse.engine.execution.models.resolved_model import resolve
from splitfuse.engine.formats.gguf.tensor_types import TENSOR_TYPES
from splitfuse.engine.serving.loading import load_runner
from splitfuse.kernels import ops
from splitfuse.kernels.cpu import build

MAX_LEN = 32  # short, so that weights outweigh tables of angles
needs_compressed_tensors = pytest.mark.skipif(not has_compressed_tensors(), reason="needs compressed-tensors")
GPU = WeightLayout(dtype=torch.bfloat16, quantization=None, is_gpu=True)


def planned_and_held(path: Path, **fields: Any) -> tuple[int, int]:
    if build.library() is None:
        pytest.skip("needs a C++ compiler: without the CPU library nothing is padded, which shows in models this small")
    config = EngineConfig(model=str(path), device="cpu", num_kv_blocks=4, max_model_len=MAX_LEN, **fields)
    runner = load_runner(resolve(config, path))
    layout = WeightLayout(dtype=runner.loaded.dtype, quantization=config.quantization, is_gpu=False)
    model_config = read_model_config(path)
    return planned_weight_bytes(path, model_config, layout, max_model_len=MAX_LEN), held_bytes(runner.model)


@pytest.mark.sampled(2)
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
    [
        *(awq(4, 32), gptq(4, 32), gptq(4, 16, symmetric=True), gptq(8, -1), fp8(None), modelopt("NVFP4")),
        *(bitsandbytes("nf4"), bitsandbytes("int8")),
        *(pytest.param(CASES[name], marks=needs_compressed_tensors) for name in ("nvfp4", "mxfp4", "mxfp8")),
    ],
    ids=["awq", "gptq", "gptq-symmetric", "gptq-8", "fp8", "modelopt", "nf4", "int8", "nvfp4", "mxfp4", "mxfp8"],
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


@pytest.mark.parametrize("name", sorted(kind.name for kind in TENSOR_TYPES.values() if kind.name in FORMS))
def test_packed_weights_have_the_planned_bits_on_a_gpu(name: str) -> None:
    """Check linears and experts: packing is torch's work, so no GPU is needed."""
    cuda = pytest.importorskip("splitfuse.kernels.cuda.backend")
    weight = random_weight(FORMS[name], 256, 512)
    planned = weight.packed_bits(is_gpu=True)
    assert 8 * held_bytes(cuda.pack_quantized([weight], dtype=torch.bfloat16)) / (256 * 512) == planned
    expert = ops.ExpertWeights([weight, weight], random_weight(FORMS[name], 512, 256))
    packed = cuda.pack_experts([expert] * 3, num_experts=3, dtype=torch.bfloat16)
    assert 8 * held_bytes(packed) / (3 * 3 * 256 * 512) == planned


def test_qwen3_30b_in_fp8_takes_31_gb_of_a_gpu(tmp_path: Path) -> None:
    """Plan with headers like the published files', over a sparse file; and pack one matrix as a GPU does."""
    fp8_config = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    fields = {**REAL_CONFIGS["Qwen/Qwen3-30B-A3B"], "quantization_config": fp8_config}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    config = read_model_config(tmp_path)
    source = ShapeSource(None, dtype=torch.bfloat16)
    model_class(config.architecture, impl=config.impl)(
        config, source, device=torch.device("meta"), max_model_len=2, dtype=torch.bfloat16
    )
    header, size = {}, 0
    for name, shape in source.shapes.items():
        tensors = {name: ("BF16", 2, shape)}
        if name.endswith("_proj.weight"):
            scales = tuple(-(-side // 128) for side in shape)
            tensors = {name: ("F8_E4M3", 1, shape), f"{name}_scale_inv": ("BF16", 2, scales)}
        for part, (dtype, itemsize, sides) in tensors.items():
            end = size + itemsize * torch.Size(sides).numel()
            header[part] = {"dtype": dtype, "shape": sides, "data_offsets": [size, end]}
            size = end
    text = json.dumps(header).encode()
    with (tmp_path / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.truncate(8 + len(text) + size)
    planned = planned_weight_bytes(tmp_path, config, GPU, max_model_len=4096)
    assert planned == pytest.approx(31.2e9, rel=0.005)
    cuda = pytest.importorskip("splitfuse.kernels.cuda.backend")
    weight = random_weight(FORMS["float8 in blocks"], 768, 2048)
    expert = ops.ExpertWeights([weight, weight], random_weight(FORMS["float8 in blocks"], 2048, 768))
    packed = cuda.pack_experts([expert], num_experts=1, dtype=torch.bfloat16)
    assert held_bytes(packed) == 3 * 768 * 2048 + 3 * 6 * 16 * torch.float32.itemsize
