"""--quantization: the tokens are those of a checkpoint that was rounded beforehand."""

from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tiny_models import save_model

from splitfuse.engine import LLM, EngineConfig, SamplingParams
from splitfuse.engine.errors import ConfigError
from splitfuse.kernels.quantize import quantize
from splitfuse.kernels.reference import rounded_to_e4m3

PROMPTS = [{"prompt_token_ids": list(range(start, start + 40))} for start in (3, 50, 130)]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def tokens(folder: Path, **settings: object) -> list[list[int]]:
    llm = LLM(str(folder), dtype="float32", max_num_batched_tokens=16, **settings)
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize(
    "family", ["llama-mha", "gpt2-untied", "granite-bias", "olmo2", "stablelm", "starcoder2-no-bias"]
)
@pytest.mark.parametrize(("name", "bits"), [("int8", 8), ("int4", 4)])
def test_rounding_at_load_is_rounding_beforehand(tmp_path: Path, family: str, name: str, bits: int) -> None:
    save_model(family, tmp_path)
    quantized = tokens(tmp_path, quantization=name)
    assert name == "int8" or quantized != tokens(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    for key, weight in weights.items():
        if weight.ndim == 2 and not any(part in key for part in ("embed", "wte", "wpe")):
            transposed = family.startswith("gpt2")
            own_bits = 8 if "lm_head" in key else bits
            rounded = quantize(weight.T if transposed else weight, own_bits).dequantized()
            weights[key] = (rounded.T if transposed else rounded).contiguous()
    save_file(weights, path, metadata={"format": "pt"})
    assert tokens(tmp_path) == quantized


def test_on_a_cpu_fp8_is_rounding_beforehand(tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    quantized = tokens(tmp_path, quantization="fp8")
    assert quantized != tokens(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    layers = {key for key, weight in weights.items() if weight.ndim == 2 and "layers" in key}
    save_file(weights | {key: rounded_to_e4m3(weights[key]) for key in layers}, path, metadata={"format": "pt"})
    assert tokens(tmp_path) == quantized


def test_a_cache_of_e4m3_wants_a_card(tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    with pytest.raises(ConfigError, match="--kv-cache-dtype fp8 is built for --device cuda only so far; leave it out"):
        tokens(tmp_path, device="cpu", kv_cache_dtype="fp8")


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="quantization 'fp3' is not one of int8, int4, fp8"):
        EngineConfig(quantization="fp3")


@pytest.mark.parametrize("name", ["int8", "fp8"])
def test_experts_are_not_rounded_in_silence(tmp_path: Path, name: str) -> None:
    save_model("mixtral-window", tmp_path)
    with pytest.raises(ConfigError, match="not built for the experts of MixtralForCausalLM"):
        LLM(str(tmp_path), quantization=name)
