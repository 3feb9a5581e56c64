"""Seed-OSS (ByteDance 2025): a Llama with biases on q, k and v, and an own switch for the bias of the output."""

from collections.abc import Mapping
from typing import Any

from .decoder import Decoder
from .layers import Attention


class SeedOssForCausalLM(Decoder):
    """Llama with `attention_out_bias`."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config({"attention_bias": True, "head_dim": 128, **raw})

    def _load_attention(self, index: int) -> Attention:
        self.o_bias = bool(self.config.hf_config.get("attention_out_bias", False))  # type: ignore[misc]
        return super()._load_attention(index)
