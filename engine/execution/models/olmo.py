"""OLMo 2, OLMo 3 and OLMoE: norms over all heads, or after each part."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...errors import ConfigError
from .decoder import Decoder, Layer
from .layers import AllHeadsNorm, Attention, NoNorm, Normed, RMSNorm, SpreadHeadsNorm
from .llama import LlamaForCausalLM
from .moe import SparseDecoder


class AllHeadsNormDecoder(Decoder):
    """AllHeadsNormDecoder: base of families whose query heads share one norm, and whose key heads share another.

    Decoder with q_norm and k_norm over all heads of a token together.
    """

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


class NormsAfterDecoder(Decoder):
    """Decoder whose parts read the residual stream without a norm, and are normalised after."""

    def _load_layer(self, index: int) -> Layer:
        layer = self._layer_name(index)
        return Layer(
            attention_norm=NoNorm(),
            attention=Normed(self._load_attention(index), self._load_norm(f"{layer}.post_attention_layernorm")),
            mlp_norm=NoNorm(),
            mlp=Normed(self._load_mlp(index), self._load_norm(f"{layer}.post_feedforward_layernorm")),
        )


class Olmo2ForCausalLM(NormsAfterDecoder, AllHeadsNormDecoder, LlamaForCausalLM):
    """OLMo 2 (OLMo Team 2025): norms after each part; all query heads share a norm, and all key heads.

    Llama whose parts read the residual stream without a norm.
    """


class Olmo3ForCausalLM(Olmo2ForCausalLM):
    """OLMo 3 (Ai2 2025): an OLMo 2 with a window in three layers of four; only full attention has the rope scaling.

    OLMo 2 with layer_types.
    """

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
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


class OlmoeForCausalLM(AllHeadsNormDecoder, SparseDecoder):
    """OLMoE (Muennighoff et al. 2024): a mixture in every layer; all query heads share a norm, and all key heads.

    SparseDecoder with OLMo 2's norms of queries and keys.
    """

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        if raw.get("clip_qkv"):
            raise ConfigError("clip_qkv is not built for OLMoE; no published model has it")
        return super().normalize_config(raw)
