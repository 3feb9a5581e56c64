"""MiniMax M2 (MiniMax 2025): a mixture in every layer, routed by sigmoid; heads share norms and rotate in part."""

from collections.abc import Mapping
from typing import Any

from .moe import SparseDecoder
from .olmo import AllHeadsNormDecoder


class MiniMaxM2ForCausalLM(AllHeadsNormDecoder, SparseDecoder):
    """SparseDecoder with Mixtral's names of experts and a bias that balances them."""

    partial_rotary = True
    sparse_block = "block_sparse_moe"
    expert_names = ("w1", "w3", "w2")
    routes_by_sigmoid = True
    routing_bias = "e_score_correction_bias"

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
        if rotary_dim := fields.get("rotary_dim"):
            fields.setdefault("partial_rotary_factor", rotary_dim / fields["head_dim"])
        return fields
