"""Choice between native classes and transformers' modules, and the models that neither serves."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import VOCAB_SIZE
from transformers import CONFIG_MAPPING

from splitfuse.engine.errors import ConfigError
from splitfuse.engine.execution.models.planned_weights import WeightLayout, planned_weight_bytes
from splitfuse.engine.execution.models.registry import parse_model_config

_SHAPE: dict[str, Any] = {"vocab_size": VOCAB_SIZE, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
_SHAPE |= {"num_attention_heads": 4, "max_position_embeddings": 128}


def fields(kind: str, architecture: str, **changes: Any) -> dict[str, Any]:
    """Return config.json of a tiny model."""
    return {**CONFIG_MAPPING[kind](**{**_SHAPE, **changes}).to_dict(), "architectures": [architecture]}


@pytest.mark.parametrize(("impl", "served_by"), [("auto", "native"), ("native", "native"), ("transformers",) * 2])
def test_a_known_family_is_served_by_its_class_unless_transformers_is_set(impl: str, served_by: str) -> None:
    config = parse_model_config(fields("llama", "LlamaForCausalLM"), generation={}, impl=impl)
    assert (config.impl, config.num_kv_heads, config.head_dim) == (served_by, 4, 16)


def test_a_family_without_a_class_goes_through_transformers() -> None:
    config = parse_model_config(fields("phi", "PhiForCausalLM"), generation={"eos_token_id": [3, 4]}, impl="auto")
    assert (config.impl, config.sliding_windows, config.eos_token_ids) == ("transformers", (0, 0), (2, 3, 4))
    with pytest.raises(ConfigError, match="'PhiForCausalLM' is not known"):
        parse_model_config(fields("phi", "PhiForCausalLM"), generation={}, impl="native")


def test_windows_are_the_masks() -> None:
    raw = fields("cwm", "CwmForCausalLM", sliding_window=37, layer_types=["sliding_attention", "full_attention"])
    assert parse_model_config(raw, generation={}, impl="auto").sliding_windows == (37, 0)


@pytest.mark.parametrize(
    ("kind", "architecture", "changes", "message"),
    [
        ("bloom", "BloomForCausalLM", {}, "attention interface"),
        ("mamba", "MambaForCausalLM", {}, "recurrent|attention interface"),
        ("granite_swa", "GraniteSWAForCausalLM", {}, "s_aux"),
        ("diffllama", "DiffLlamaForCausalLM", {}, "attends twice"),
        ("minimax", "MiniMaxForCausalLM", {}, "state"),
        ("phi", "PhiForCausalLM", {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}},
         "other requests"),
    ],
)  # fmt: skip
def test_models_that_do_not_fit_are_refused_by_name(
    kind: str, architecture: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=f"{architecture}' cannot be served through transformers.*({message})"):
        parse_model_config(fields(kind, architecture, **changes), generation={}, impl="transformers")


def test_code_of_a_models_folder_is_never_run() -> None:
    raw = {"architectures": ["OwnForCausalLM"], "model_type": "own", "auto_map": {"AutoModelForCausalLM": "own.Own"}}
    with pytest.raises(ConfigError, match="code in a model's folder is never run"):
        parse_model_config(raw, generation={}, impl="transformers")


def test_memory_is_planned_without_weights(tmp_path: Path) -> None:
    config = parse_model_config(fields("phi", "PhiForCausalLM"), generation={}, impl="auto")
    layout = WeightLayout(dtype=torch.float32, quantization=None, is_gpu=True)
    num_weights = 2 * 271 * 64 + 271 + 2 * (4 * (64 * 64 + 64) + 2 * 64 * 96 + 96 + 64 + 2 * 64) + 2 * 64
    assert planned_weight_bytes(tmp_path, config, layout, max_model_len=16) == pytest.approx(4 * num_weights, rel=0.01)


def test_gguf_files_have_native_classes_only() -> None:
    raw = fields("llama", "LlamaForCausalLM")
    with pytest.raises(ConfigError, match="reads safetensors"):
        parse_model_config(raw, generation={}, source="a.gguf", impl="transformers")
