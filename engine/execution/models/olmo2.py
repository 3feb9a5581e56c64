"""OLMo 2 (OLMo Team 2025): norms after each part instead of before; all query heads share a norm, and all key heads."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .decoder import Layer
from .layers import AllHeadsNorm, Attention, NoNorm, Normed, RMSNorm, SpreadHeadsNorm
from .llama import LlamaForCausalLM


class Olmo2ForCausalLM(LlamaForCausalLM):
    """Llama whose parts read the residual stream without a norm."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config({"rms_norm_eps": 1e-5, **raw})

    def _load_attention(self, index: int) -> Attention:
        config, name = self.config, f"{self._layer_name(index)}.self_attn"
        sizes = {"q_norm": config.num_heads * config.head_dim, "k_norm": config.num_kv_heads * config.head_dim}
        q_norm, k_norm = (
            AllHeadsNorm(RMSNorm(self._norm_weight(f"{name}.{norm}", size), config.norm_eps))
            for norm, size in sizes.items()
        )
        attention, parallel = super()._load_attention(index), self._parallel
        if parallel.size == 1:
            return replace(attention, qk_norms=(q_norm, k_norm))
        own_kv = parallel.kv_heads(config.num_kv_heads)
        spread_q = SpreadHeadsNorm(q_norm, parallel, config.num_heads, parallel.share(config.num_heads))
        return replace(attention, qk_norms=(spread_q, SpreadHeadsNorm(k_norm, parallel, config.num_kv_heads, own_kv)))

    def _load_layer(self, index: int) -> Layer:
        layer = self._layer_name(index)
        return Layer(
            attention_norm=NoNorm(),
            attention=Normed(self._load_attention(index), self._load_norm(f"{layer}.post_attention_layernorm")),
            mlp_norm=NoNorm(),
            mlp=Normed(self._load_mlp(index), self._load_norm(f"{layer}.post_feedforward_layernorm")),
        )
