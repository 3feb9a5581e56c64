"""--quantization gives the tokens of a checkpoint that was rounded beforehand."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import VOCAB_SIZE, save_model

from splitfuse.engine import LLM, EngineConfig, SamplingParams
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.resolved_model import resolve_cache_dtype
from splitfuse.engine.formats.weights import SafetensorsSource
from splitfuse.engine.serving.request_output import RequestOutput
from splitfuse.kernels import ops
from splitfuse.kernels.quantize import QuantizedWeight, can_quantize, quantize, rounded_to_e4m3

PROMPTS = [{"prompt_token_ids": list(range(start, start + 40))} for start in (3, 50, 130)]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def tokens(folder: Path, **settings: object) -> list[list[int]]:
    llm = LLM(str(folder), dtype="float32", max_num_batched_tokens=16, **settings)
    return [output.outputs[0].token_ids for output in llm.generate(PROMPTS, GREEDY)]


@pytest.mark.parametrize(
    "family",
    [
        *("llama-mha", "gpt2-untied", "granite-bias", "olmo2", "stablelm", "starcoder2-no-bias"),
        *("mixtral-window", "qwen3-moe", "qwen2-moe"),
    ],
)
@pytest.mark.parametrize(("name", "bits"), [("int8", 8), ("int4", 4)])
def test_rounding_at_load_is_rounding_beforehand(tmp_path: Path, family: str, name: str, bits: int) -> None:
    save_model(family, tmp_path)
    quantized = tokens(tmp_path, quantization=name)
    assert name == "int8" or quantized != tokens(tmp_path)
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    for key, weight in weights.items():
        if weight.ndim == 2 and not any(part in key for part in ("embed", "wte", "wpe", ".gate.", "expert_gate")):
            transposed = family.startswith("gpt2")
            own_bits = 8 if "lm_head" in key else bits
            matrix = weight.T if transposed else weight
            if "expert" not in key or can_quantize(matrix, own_bits):
                rounded = quantize(matrix, own_bits).dequantized()
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


@pytest.mark.parametrize(("name", "device", "other"), [("fp8", "cpu", "int8"), ("int8", "cuda", "fp8")])
def test_a_cache_that_the_device_cannot_read_is_refused(name: str, device: str, other: str) -> None:
    of = "cuda" if device == "cpu" else "cpu"
    with pytest.raises(ConfigError, match=f"--kv-cache-dtype {name} is built for --device {of} only .* take {other}"):
        resolve_cache_dtype(name, torch.bfloat16, torch.device(device))


def test_loading_refuses_a_cache_that_the_device_cannot_read(tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    with pytest.raises(ConfigError, match="--kv-cache-dtype fp8"):
        tokens(tmp_path, device="cpu", kv_cache_dtype="fp8")


def test_what_is_not_known_is_refused() -> None:
    with pytest.raises(ConfigError, match="quantization 'fp3' is not one of int8, int4, fp8"):
        EngineConfig(quantization="fp3")


def _take_int8(source: SafetensorsSource, name: str, shape: tuple[int, ...]) -> QuantizedWeight | None:
    """Take matrices and the table, not norms, like files of 8 bits in groups of 16."""
    return _int8(source._take(name)) if len(shape) == 2 else None


def _int8(weight: torch.Tensor) -> QuantizedWeight:
    grouped = weight.float().view(len(weight), -1, 16)
    scales = (grouped.abs().amax(dim=2) / 127).half()
    values = (grouped / scales.float()[:, :, None]).round().clamp(-127, 127).to(torch.int8)
    return QuantizedWeight(values.view(weight.shape), scales.T.contiguous(), None, 8)


@pytest.mark.parametrize("family", ["llama-gqa-tied", "llama-mha", "gemma2"])
def test_weights_that_come_quantized_are_served_packed(
    tmp_path: Path, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare token by token with dequantized weights; a table is packed once, and a tied head shares it."""
    save_model(family, tmp_path)
    laid_out: list[QuantizedWeight] = []
    with monkeypatch.context() as patched:
        patched.setattr(SafetensorsSource, "take_quantized", _take_int8)
        pack = ops.pack_embedding
        patched.setattr(ops, "pack_embedding", lambda weight, **how: laid_out.append(weight) or pack(weight, **how))
        patched.setattr(ops, "pack_linear", None)  # packs plain weights, of which there are none
        quantized = tokens(tmp_path)
    assert [len(weight.values) for weight in laid_out] == [VOCAB_SIZE]
    path = tmp_path / "model.safetensors"
    weights = load_file(path)
    wide = {name: _int8(weight).dequantized() if weight.ndim == 2 else weight for name, weight in weights.items()}
    save_file(wide, path, metadata={"format": "pt"})
    assert quantized == tokens(tmp_path)


def test_rounded_activations_are_near_and_the_same_in_any_company(tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    settings = {"dtype": "bfloat16", "quantization": "int8", "num_kv_blocks": 40}
    wide, rounded = (
        LLM(str(tmp_path), **settings, quantization_activations=kind).generate(
            PROMPTS, SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)
        )
        for kind in ("none", "int8")
    )
    found = [_logprobs(outputs) for outputs in (wide, rounded)]
    assert found[0] != found[1]
    assert torch.tensor(found[0]).sub(torch.tensor(found[1])).abs().mean() < 0.1
    alone = LLM(str(tmp_path), **settings, quantization_activations="int8").generate(
        PROMPTS[:1], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, ignore_eos=True)
    )
    assert _logprobs(alone) == _logprobs(rounded[:1])


def _logprobs(outputs: list[RequestOutput]) -> list[float]:
    return [scored.logprob for output in outputs for scored in output.prompt_logprobs or [] if scored is not None]
