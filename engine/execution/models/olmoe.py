"""OLMoE (Muennighoff et al. 2024): a mixture in every layer; all query heads share a norm, and all key heads."""

from collections.abc import Mapping
from typing import Any

from ...errors import ConfigError
from .all_heads_norm import AllHeadsNormDecoder
from .moe import SparseDecoder

_DEFAULTS = {
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "intermediate_size": 2048,
    "norm_topk_prob": False,
    "rms_norm_eps": 1e-5,
}


class OlmoeForCausalLM(AllHeadsNormDecoder, SparseDecoder):
    """SparseDecoder with OLMo 2's norms of queries and keys."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**_DEFAULTS, **raw}
        if fields.get("clip_qkv"):
            raise ConfigError("clip_qkv is not built for OLMoE; no published model has it")
        return super().normalize_config({**fields, "moe_intermediate_size": fields["intermediate_size"]})
