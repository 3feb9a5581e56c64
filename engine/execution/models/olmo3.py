"""OLMo 3 (Ai2 2025): an OLMo 2 with a window in three layers of four; only full attention has the rope scaling."""

from collections.abc import Mapping
from typing import Any

from .olmo2 import Olmo2ForCausalLM


class Olmo3ForCausalLM(Olmo2ForCausalLM):
    """OLMo 2 with layer_types."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        # A Llama's window is ignored.
        fields = {**super().normalize_config(raw), "sliding_window": raw.get("sliding_window", 4096)}
        fields["layer_types"] = raw.get("layer_types")
        if not fields["layer_types"]:
            layers = range(1, fields["num_hidden_layers"] + 1)
            fields["layer_types"] = ["sliding_attention" if layer % 4 else "full_attention" for layer in layers]
        ropes, theta = fields.get("rope_parameters") or {}, fields.get("rope_theta") or 5e5
        fields["rope_parameters"] = {
            "full_attention": {
                "rope_theta": theta,
                **(ropes.get("full_attention") or {}),
                **(fields.get("rope_scaling") or {}),
            },
            "sliding_attention": {"rope_theta": theta, **(ropes.get("sliding_attention") or {})},
        }
        return {**fields, "rope_scaling": None}
