"""Llama, and families that change little of it: Seed-OSS, SmolLM3."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import ConfigError
from ...formats.json_file import positive_int
from .decoder import Decoder
from .layers import Attention


class LlamaForCausalLM(Decoder):
    """Llama 1 to 3 (Touvron et al. 2023, Dubey et al. 2024): the decoder unchanged.

    Decoder without a window: transformers ignores sliding_window for Llama.
    """


class SeedOssForCausalLM(Decoder):
    """Seed-OSS (ByteDance 2025): a Llama with biases on q, k and v, and an own switch for the bias of the output.

    Llama with `attention_out_bias`.
    """

    def _load_attention(self, index: int) -> Attention:
        self.o_bias = bool(self.config.hf_config.get("attention_out_bias", False))  # type: ignore[misc]
        return super()._load_attention(index)


class SmolLM3ForCausalLM(Decoder):
    """SmolLM3 (Hugging Face 2025): a Llama in which every fourth layer has no positions (Yang et al. 2025, RNoPE).

    Llama with `no_rope_layers`: 1 for a layer with positions, 0 for one without, which alone may have a window.
    """

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
        if not fields.get("no_rope_layers"):
            every = positive_int(fields, "no_rope_layer_interval", 4)
            fields["no_rope_layers"] = [int((layer + 1) % every != 0) for layer in range(fields["num_hidden_layers"])]
        if len(fields["no_rope_layers"]) < fields["num_hidden_layers"]:
            raise ConfigError("no_rope_layers has fewer entries than there are layers")
        if not fields.get("use_sliding_window"):
            fields |= {"sliding_window": None, "layer_types": None}
        elif not fields.get("layer_types"):
            kinds = ("sliding_attention", "full_attention")
            fields["layer_types"] = [kinds[bool(rotates)] for rotates in fields["no_rope_layers"]]
        return fields

    def _load_attention(self, index: int) -> Attention:
        attention = super()._load_attention(index)
        if self.config.hf_config["no_rope_layers"][index]:
            return attention
        return replace(attention, rope=attention.rope._replace(cos_sin=attention.rope.cos_sin[:, :0].contiguous()))
