"""Gemma 3, its text models (Gemma Team 2025): a Gemma 2 with q and k normalised, and other angles where a window is."""

from collections.abc import Mapping
from typing import Any

from ..errors import ConfigError
from .gemma2 import Gemma2ForCausalLM

_UNSAID = {
    "max_position_embeddings": 131072,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "sliding_window_pattern": 6,
}


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    """One layer in six sees everything, with a rope theta of its own, and it alone has the rope scaling."""

    qk_norm = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        words = super().normalize_config({**_UNSAID, **raw, "layer_types": _layer_types({**_UNSAID, **raw})})
        if words["attn_logit_softcapping"]:
            raise ConfigError("attn_logit_softcapping: transformers ignores it in Gemma 3; set it to null if you may")
        ropes = words.get("rope_parameters") or {}
        words["rope_parameters"] = {
            "full_attention": {
                "rope_theta": words.get("rope_theta") or 1e6,
                **(ropes.get("full_attention") or {}),
                **(words.get("rope_scaling") or {}),
            },
            "sliding_attention": {
                "rope_theta": words.get("rope_local_base_freq") or 1e4,
                **(ropes.get("sliding_attention") or {}),
            },
        }
        return {**words, "rope_scaling": None}


def _layer_types(words: Mapping[str, Any]) -> list[str]:
    if words.get("layer_types"):
        return list(words["layer_types"])
    every = int(words["sliding_window_pattern"])
    layers = range(1, words["num_hidden_layers"] + 1)
    return ["sliding_attention" if layer % every else "full_attention" for layer in layers]
