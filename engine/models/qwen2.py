"""Qwen2 and Qwen2.5 (Yang et al. 2024): biases on q, k and v only."""

from collections.abc import Mapping
from typing import Any, ClassVar

from .decoder import Decoder


class Qwen2ForCausalLM(Decoder):
    """Biases on q, k and v, none on the output; a window only for the last layers, and only if it is switched on."""

    qkv_bias: ClassVar[bool | None] = True
    o_bias: ClassVar[bool | None] = False

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        words = super().normalize_config({"sliding_window": 4096, "max_window_layers": 28, **raw})
        if not words.get("use_sliding_window"):
            return {**words, "sliding_window": None, "layer_types": None}
        if words["sliding_window"] and not words.get("layer_types"):
            first = int(words["max_window_layers"])
            kinds = ["full_attention" if i < first else "sliding_attention" for i in range(words["num_hidden_layers"])]
            words["layer_types"] = kinds
        return words
