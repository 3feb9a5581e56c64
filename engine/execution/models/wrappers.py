"""Wrappers: configs of models with images or sound around a text model of a served family, which alone is served."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

# Families of text models whose model_type is not spelled like their architecture.
_TEXT_MODELS = {
    **dict.fromkeys(("qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen2_5_omni_text"), "qwen2"),
    **dict.fromkeys(("qwen3_vl", "qwen3_vl_text", "qwen3_omni_text"), "qwen3"),
    **dict.fromkeys(("qwen3_vl_moe", "qwen3_vl_moe_text"), "qwen3moe"),
    "gemma4_unified_text": "gemma4",
    "exaone4_5_text": "exaone4",
}
# Fields that published configs leave out, by transformers' defaults of these text models.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "max_position_embeddings": 131072,
    },
    "qwen3_vl_moe_text": {"norm_topk_prob": True},  # which transformers does whatever the field says
    "mistral": {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 32000, "hidden_size": 4096},
    "llama": {"num_attention_heads": 32, "vocab_size": 32000, "hidden_size": 4096},
}
_OF_THE_WHOLE = ("eos_token_id", "bos_token_id", "pad_token_id", "quantization_config", "dtype", "torch_dtype")
_OTHER_TASK = re.compile(r"For(?!ConditionalGeneration|CausalLM|ImageTextToText)[A-Z]")  # classes, scores, retrieval
NOTE = "text part; images are not served"


def text_part(raw: Mapping[str, Any], families: Iterable[str]) -> dict[str, Any] | None:
    """Return the config.json of the text model within a wrapper's; None if the text is of none of the families."""
    architecture = str((raw.get("architectures") or [""])[0])
    text = raw.get("text_config") or raw.get("llm_config") or ((raw.get("thinker_config") or {}).get("text_config"))
    if text is None and "vision_config" in raw and raw.get("model_type") in _TEXT_MODELS:
        text = {key: value for key, value in raw.items() if key != "vision_config"}  # before 2025 in one object
    if not isinstance(text, Mapping) or _OTHER_TASK.search(architecture):
        return None
    kind = str(text.get("model_type") or "")
    stem = _TEXT_MODELS.get(kind) or kind.removesuffix("_text").replace("_", "")
    family = {_stem(name): name for name in families if name.endswith("ForCausalLM")}.get(stem)
    if family is None:
        return None
    whole = {name: raw[name] for name in _OF_THE_WHOLE if raw.get(name) is not None}
    fields = {**_DEFAULTS.get(kind, {}), **whole, **{key: value for key, value in text.items() if value is not None}}
    for name in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := fields.get(name), Mapping) and "mrope_section" in rope:
            fields[name] = _without_sections(rope)
    return {
        **fields,
        "architectures": [family],
        "is_text_part": True,
        "description": raw.get("description") or NOTE,
        "tie_word_embeddings": True,  # wrappers and texts disagree about it, but a stored head is always used
    }


def _stem(architecture: str) -> str:
    return architecture.removesuffix("ForCausalLM").lower().replace("_", "")


def _without_sections(rope: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return a rope without its sections for time, height and width: a text's positions are the same in all three."""
    rest = {key: value for key, value in rope.items() if not key.startswith("mrope")}
    kind = rest.get("rope_type", rest.get("type", "default"))
    if kind in ("default", "mrope"):
        rest = {
            "rope_type": "default",
            **{key: value for key, value in rest.items() if key not in ("type", "rope_type")},
        }
        return rest if "rope_theta" in rest else None
    return rest
