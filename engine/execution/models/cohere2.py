"""Command R7B and Command A (Cohere 2025): a Command R with windows in three layers of four, the only ones rotated."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...formats.positive_numbers import positive_int
from .cohere import CohereForCausalLM
from .layers import Attention


class Cohere2ForCausalLM(CohereForCausalLM):
    """Command R in which layers with full attention have no positions."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config({"sliding_window": 4096, **raw})
        if not fields.get("layer_types"):
            every, layers = positive_int(fields, "sliding_window_pattern", 4), range(1, fields["num_hidden_layers"] + 1)
            fields["layer_types"] = ["sliding_attention" if layer % every else "full_attention" for layer in layers]
        return {**fields, "use_qk_norm": False}

    def _load_attention(self, index: int) -> Attention:
        attention = super()._load_attention(index)
        if self.config.sliding_windows[index]:
            return attention
        return replace(attention, rope=attention.rope._replace(cos_sin=attention.rope.cos_sin[:, :0].contiguous()))
