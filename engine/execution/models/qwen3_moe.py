"""Qwen3-MoE (Yang et al. 2025): a Qwen3 with mixtures of experts in the layers that the config names.

transformers rounds the experts' routing weights to the model's dtype; here they stay float32, like Mixtral's in
transformers.
"""

from collections.abc import Mapping
from typing import Any

from .moe import SparseDecoder

_DEFAULTS = {
    "num_experts": 128,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "intermediate_size": 6144,
    "norm_topk_prob": False,
    "sliding_window": 4096,
}


class Qwen3MoeForCausalLM(SparseDecoder):
    """SparseDecoder that normalises queries and keys per head; a window, if switched on, applies to all layers."""

    qk_norm = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**_DEFAULTS, **raw, "layer_types": None}
        if not fields.get("use_sliding_window"):
            fields["sliding_window"] = None
        return super().normalize_config(fields)
