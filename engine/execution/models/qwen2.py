"""Qwen2 and Qwen2.5 (Yang et al. 2024): biases on q, k and v only."""

from collections.abc import Mapping
from typing import Any, ClassVar

from .decoder import Decoder


class Qwen2ForCausalLM(Decoder):
    """Llama with biases on q, k and v, not on the output; a window, if switched on, applies to the last layers only."""

    qkv_bias: ClassVar[bool | None] = True
    o_bias: ClassVar[bool | None] = False

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config({"sliding_window": 4096, "max_window_layers": 28, **raw})
        if not fields.get("use_sliding_window"):
            return {**fields, "sliding_window": None, "layer_types": None}
        if fields["sliding_window"] and not fields.get("layer_types"):
            first = int(fields["max_window_layers"])
            kinds = ["full_attention" if i < first else "sliding_attention" for i in range(fields["num_hidden_layers"])]
            fields["layer_types"] = kinds
        return fields
