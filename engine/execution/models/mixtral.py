"""Mixtral (Jiang et al. 2024): a Mistral with a mixture of experts in every layer."""

from collections.abc import Mapping
from typing import Any

from .moe import SparseDecoder

_DEFAULTS = {
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5,
    "rope_theta": 1000000.0,
}


class MixtralForCausalLM(SparseDecoder):
    """SparseDecoder with other names of experts, whose weights always sum to 1."""

    sparse_block = "block_sparse_moe"
    expert_names = ("w1", "w3", "w2")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**_DEFAULTS, **raw}
        size = fields["intermediate_size"]
        return super().normalize_config({**fields, "moe_intermediate_size": size, "norm_topk_prob": True})
