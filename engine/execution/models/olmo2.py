"""OLMo 2 (OLMo Team 2025): norms after each part instead of before; all query heads share a norm, and all key heads."""

from collections.abc import Mapping
from typing import Any

from .all_heads_norm import AllHeadsNormDecoder
from .decoder import Layer
from .layers import NoNorm, Normed
from .llama import LlamaForCausalLM


class Olmo2ForCausalLM(AllHeadsNormDecoder, LlamaForCausalLM):
    """Llama whose parts read the residual stream without a norm."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config({"rms_norm_eps": 1e-5, **raw})

    def _load_layer(self, index: int) -> Layer:
        layer = self._layer_name(index)
        return Layer(
            attention_norm=NoNorm(),
            attention=Normed(self._load_attention(index), self._load_norm(f"{layer}.post_attention_layernorm")),
            mlp_norm=NoNorm(),
            mlp=Normed(self._load_mlp(index), self._load_norm(f"{layer}.post_feedforward_layernorm")),
        )
