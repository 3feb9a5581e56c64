"""EXAONE 4 (LG AI Research 2025): norms after each part, norms of q and k, no positions in layers without a window."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import ConfigError
from .layers import Attention
from .olmo import NormsAfterDecoder


class Exaone4ForCausalLM(NormsAfterDecoder):
    """NormsAfterDecoder with norms of q and k; the small models have no windows and rotate always."""

    qk_norm = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
        if not fields["sliding_window"]:
            fields["layer_types"] = ["full_attention"] * fields["num_hidden_layers"]
        elif not fields.get("layer_types"):
            fields["layer_types"] = _layer_types(fields)
        return fields

    def _load_attention(self, index: int) -> Attention:
        attention = super()._load_attention(index)
        if not self.config.hf_config["sliding_window"] or self.config.sliding_windows[index]:
            return attention
        return replace(attention, rope=attention.rope._replace(cos_sin=attention.rope.cos_sin[:, :0].contiguous()))


def _layer_types(fields: Mapping[str, Any]) -> list[str]:
    """Return each layer's kind of attention from a pattern: n, every nth layer is full, or "LLLG"."""
    pattern, num_layers = fields.get("sliding_window_pattern", 4), fields["num_hidden_layers"]
    if isinstance(pattern, str):
        if not pattern or set(pattern) - {"L", "G"}:
            raise ConfigError(f"sliding_window_pattern {pattern!r} must be a number or made of L and G")
        kinds = [{"L": "sliding_attention", "G": "full_attention"}[kind] for kind in pattern]
        # The last layer is full whatever the pattern says.
        return [kinds[layer % len(kinds)] for layer in range(num_layers - 1)] + ["full_attention"]
    return ["sliding_attention" if layer % pattern else "full_attention" for layer in range(1, num_layers + 1)]
