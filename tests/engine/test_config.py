"""config.json as it occurs in the wild means what transformers takes it to mean, or is refused in one line."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import greedy, save_model, write_config
from transformers import AutoModelForCausalLM

from splitfuse.engine import LLM, EngineConfig, SamplingParams
from splitfuse.engine.errors import ConfigError
from splitfuse.engine.model_config import ModelConfig
from splitfuse.engine.tokenizer import Tokenizer

PROMPT = [20 + i * 7 % 200 for i in range(120)]
OURS_LIKE_THEIRS: list[tuple[str, dict[str, Any]]] = [
    ("llama-gqa-tied", {"sliding_window": 16}),
    ("llama-gqa-tied", {"rope_parameters": None, "rope_theta": 50.0}),
    (
        "llama-gqa-tied",
        {"rope_parameters": None, "rope_theta": 99.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
    ),
    ("llama-mha", {"num_key_value_heads": None}),
    ("mistral-window", {"sliding_window": None}),
    ("mistral-window", {"sliding_window": 5}),
    ("qwen2", {"sliding_window": 16, "layer_types": None}),
    ("qwen2", {"sliding_window": 16, "use_sliding_window": True, "layer_types": None, "max_window_layers": 1}),
    (
        "qwen2",
        {"sliding_window": 16, "use_sliding_window": True, "layer_types": ["full_attention", "sliding_attention"]},
    ),
    ("qwen3", {"use_sliding_window": False, "sliding_window": 16, "layer_types": None}),
]


@pytest.mark.parametrize(("name", "changes"), OURS_LIKE_THEIRS)
def test_config_variants_give_the_tokens_of_transformers(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    save_model(name, tmp_path)
    (tmp_path / "generation_config.json").unlink()
    write_config(tmp_path, **changes)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    # transformers' Llama ignores a window, but its cache does not: from the second token on it has forgotten the first.
    num_tokens = 1 if "llama" in name and "sliding_window" in changes else 12
    params = SamplingParams(temperature=0, max_tokens=num_tokens, ignore_eos=True)
    ours = LLM(str(tmp_path), dtype="float32").generate({"prompt_token_ids": PROMPT}, params)[0]
    assert ours.outputs[0].token_ids == greedy(theirs, PROMPT, num_tokens)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"quantization_config": {"quant_method": "fp8"}}, "quantized"),
    ({"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "factor"),
    ({"rope_parameters": {"rope_type": "mrope", "factor": 2.0}}, "mrope"),
    ({"eos_token_id": "</s>"}, "config.json"),
    ({"rms_norm_eps": None}, "config.json"),
    ({"head_dim": 15}, "odd"),
    ({"num_key_value_heads": 3}, "multiple"),
    ({"hidden_size": -1}, "hidden_size"),
    ({"hidden_act": "gelu"}, "gelu"),
    ({"architectures": ["FooForCausalLM"]}, "known: .*LlamaForCausalLM"),
    ({"intermediate_size": 97}, "do not belong together"),
]


@pytest.mark.parametrize(("changes", "words"), REFUSED)
def test_what_cannot_work_is_refused(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    (tmp_path / "generation_config.json").unlink()
    write_config(tmp_path, **changes)
    with pytest.raises(ConfigError, match=words):
        LLM(str(tmp_path), dtype="float32")


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["lm_head.weight"].to(torch.int8)
    save_file(tensors, tmp_path / "model.safetensors")
    with pytest.raises(ConfigError, match="int8"):
        LLM(str(tmp_path), dtype="float32")


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", b"{"),
        ("tokenizer_config.json", b"{"),
        ("chat_template.jinja", b"\xff\xfe"),
        ("chat_template.jinja", b"{% for x %}"),
    ],
)
def test_broken_tokenizer_files_stop_the_start(file: str, content: bytes, tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(ConfigError, match=r"tokenizer|chat"):
        Tokenizer(tmp_path)


def test_an_end_token_beyond_the_vocabulary_is_no_end_token(tmp_path: Path) -> None:
    save_model("llama-mha", tmp_path)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2000]}))
    params = SamplingParams(min_tokens=2, max_tokens=4, temperature=0)
    assert LLM(str(tmp_path), dtype="float32").generate([[20, 21]], params)[0].outputs[0].finish_reason in (
        "length",
        "stop",
    )


def test_eos_comes_from_the_generation_config_first() -> None:
    raw = json.loads((Path(__file__).parents[2] / "engine/demo_model/config.json").read_text())
    assert ModelConfig.from_dict(raw, generation={"eos_token_id": [3, 4]}).eos_token_ids == (3, 4)
    assert ModelConfig.from_dict(raw, generation={}).eos_token_ids == (raw["eos_token_id"],)


@pytest.mark.parametrize(
    "settings",
    [
        {"block_size": 0},
        {"max_num_seqs": -1},
        {"max_model_len": 1},
        {"gpu_memory_utilization": 1.5},
        {"target_itl_ms": 0},
        {"batching_policy": "lifo"},
        {"preemption_mode": "swap"},
        {"speculative_config": {}},
        {"enable_chunked_prefill": False},
        {"model": " "},
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        EngineConfig(**settings)
