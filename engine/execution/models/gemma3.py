"""Gemma 3 text models (Gemma Team 2025): a Gemma 2 with q and k normalised and another rope in layers with a window."""

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from .gemma2 import Gemma2ForCausalLM

_DEFAULTS = {
    "max_position_embeddings": 131072,
    "attn_logit_softcapping": None,
    "final_logit_softcapping": None,
    "sliding_window_pattern": 6,
}


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    """Gemma 2 in which one layer in six has full attention, its own rope theta and, alone, the rope scaling."""

    qk_norm = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config({**_DEFAULTS, **raw, "layer_types": _layer_types({**_DEFAULTS, **raw})})
        if fields["attn_logit_softcapping"]:
            raise ConfigError("attn_logit_softcapping: transformers ignores it in Gemma 3; set it to null if you may")
        return {**fields, "rope_parameters": dual_ropes(fields), "rope_scaling": None}


def dual_ropes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rope of each kind of layer, in the old or the new spelling of their fields."""
    ropes = fields.get("rope_parameters") or {}
    return {
        "full_attention": {
            "rope_theta": fields.get("rope_theta") or 1e6,
            **(ropes.get("full_attention") or {}),
            **(fields.get("rope_scaling") or {}),
        },
        "sliding_attention": {
            "rope_theta": fields.get("rope_local_base_freq") or 1e4,
            **(ropes.get("sliding_attention") or {}),
        },
    }


def _layer_types(fields: Mapping[str, Any]) -> list[str]:
    if fields.get("layer_types"):
        return list(fields["layer_types"])
    every = int(fields["sliding_window_pattern"])
    layers = range(1, fields["num_hidden_layers"] + 1)
    return ["sliding_attention" if layer % every else "full_attention" for layer in layers]
