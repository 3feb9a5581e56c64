"""ModelConfig of a model that transformers implements, from config.json and from a probe of its modules."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from ...errors import ConfigError
from ...execution.models.config import ModelConfig, end_token_ids
from ...execution.models.layer_states import PagedKV
from ...formats.quantization.registry import checkpoint_format
from .attention import PROBED
from .probe import LayerAttention, probe

_BY_BATCH = ("dynamic", "longrope")  # rotations that transformers chooses by the longest sequence of a batch


class Shape(NamedTuple):
    """ModelConfig of a model, and its layers' attention."""

    config: ModelConfig
    layers: list[LayerAttention]


def has_class(raw: Mapping[str, Any]) -> bool:
    """True if transformers has a causal language model for this config.json, fitting or not."""
    return _named(raw) in _class_names(raw)


def _named(raw: Mapping[str, Any]) -> str:
    return str((raw.get("architectures") or [""])[0])


def _class_names(raw: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of transformers' causal language models for this config.json."""
    found = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(str(raw.get("model_type")), ())
    return (found,) if isinstance(found, str) else tuple(found)


def parse(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """Return the shape of the model of config.json. Raises ConfigError that says what does not fit."""
    if (names := _class_names(raw)) and _named(raw) not in names:
        raise ConfigError(f"the causal language model of model_type {raw['model_type']!r} is {names[0]}")
    return read_shape(raw, generation).config


def read_shape(raw: Mapping[str, Any], generation: Mapping[str, Any]) -> Shape:
    """Like `parse`, with the layers' attention."""
    theirs = their_config(raw)
    longest = getattr(theirs, "max_position_embeddings", None)
    if not isinstance(longest, int) or longest < 1:
        raise ConfigError("config.json does not say how many positions the model was made for")
    layers = probe(build(raw, PROBED, dtype=torch.float32, experts="batched_mm"), num_positions=longest)
    config = ModelConfig(
        architecture=_class_of(theirs).__name__,
        vocab_size=theirs.vocab_size,
        hidden_size=theirs.hidden_size,
        num_layers=len(layers),
        num_heads=layers[0].num_heads,
        num_kv_heads=layers[0].num_kv_heads,
        head_dim=layers[0].head_dim,
        intermediate_size=getattr(theirs, "intermediate_size", None) or 4 * theirs.hidden_size,
        max_position_embeddings=longest,
        norm_eps=1e-6,
        ropes=(),
        tie_word_embeddings=bool(theirs.tie_word_embeddings),
        attention_bias=False,
        mlp_bias=False,
        hidden_act="",
        quantization=checkpoint_format(raw.get("quantization_config")),
        sliding_windows=tuple(layer.sliding_window for layer in layers),
        dtype=str(raw.get("dtype") or raw.get("torch_dtype") or "float32"),
        eos_token_ids=end_token_ids(raw.get("eos_token_id"), generation.get("eos_token_id"))
        or end_token_ids(theirs.eos_token_id),
        description=str(raw.get("description", "")),
        hf_config=dict(raw),
        layer_states=tuple(PagedKV(layer.num_kv_heads, layer.head_dim) for layer in layers),
        impl="transformers",
    )
    return Shape(config, layers)


def their_config(raw: Mapping[str, Any]) -> Any:
    """Return transformers' config. Raises ConfigError if transformers has no causal language model for it."""
    kind = raw.get("model_type")
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        own = "; code in a model's folder is never run, because it could do anything" if "auto_map" in raw else ""
        raise ConfigError(f"transformers has no causal language model of model_type {kind!r}{own}")
    fields = {name: value for name, value in raw.items() if name not in ("quantization_config", "auto_map")}
    config = CONFIG_MAPPING[kind].from_dict(fields)
    if config.is_encoder_decoder or getattr(config, "add_cross_attention", False):
        raise ConfigError("it is an encoder-decoder, or has cross attention")
    ropes = getattr(config, "rope_parameters", None) or {}
    for rope in (ropes, *(value for value in ropes.values() if isinstance(value, dict))):
        if rope.get("rope_type") in _BY_BATCH:
            raise ConfigError(f"its rope type {rope['rope_type']} would depend on the other requests of a step")
    return config


def build(raw: Mapping[str, Any], attention: str, *, dtype: torch.dtype, experts: str) -> Any:
    """Return the model on the meta device. Raises ConfigError."""
    config = their_config(raw)
    config.use_cache = config.output_router_logits = False
    family = _class_of(config)
    if not family._supports_attention_backend:
        raise ConfigError("it does not use transformers' attention interface")
    with torch.device("meta"):
        model = family._from_config(config, attn_implementation=attention, experts_implementation=experts, dtype=dtype)
    return model.eval()


def _class_of(config: Any) -> Any:
    found = MODEL_FOR_CAUSAL_LM_MAPPING[type(config)]
    return found[0] if isinstance(found, tuple) else found
