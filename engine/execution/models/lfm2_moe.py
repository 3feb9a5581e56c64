"""LFM2-MoE (Liquid AI 2025): an LFM2 with mixtures of experts after its first layers, routed by sigmoid."""

from collections.abc import Mapping
from typing import Any

from .lfm2 import Lfm2ForCausalLM
from .moe import SparseDecoder

_DEFAULTS = {
    "num_dense_layers": 2,
    "num_experts": 32,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1792,
    "norm_topk_prob": True,
    "use_expert_bias": True,
}


class Lfm2MoeForCausalLM(SparseDecoder, Lfm2ForCausalLM):
    """LFM2 with experts, which a bias may balance."""

    sparse_block = "feed_forward"
    expert_names = ("w1", "w3", "w2")
    routes_by_sigmoid = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**_DEFAULTS, **raw, "block_auto_adjust_ff_dim": False}
        return super().normalize_config({**fields, "mlp_only_layers": [*range(fields["num_dense_layers"])]})

    def _load(self) -> None:
        self.routing_bias = "expert_bias" if self.config.hf_config["use_expert_bias"] else ""  # type: ignore[misc]
        super()._load()
