"""DeepSeek V2 and V3, and dots.llm1."""

from collections.abc import Mapping
from typing import Any

from ....kernels import ops
from .deepseek_moe import DeepseekSparseDecoder
from .hybrid import check_values
from .latent_decoder import LatentDecoder
from .moe import ExpertsConfig


class DeepseekV2ForCausalLM(LatentDecoder):
    """DeepSeek V2 and Coder V2 (DeepSeek-AI 2024): latent attention, softmax routing, perhaps in groups.

    LatentDecoder that scores by softmax; a group counts its best expert.
    """

    routes_by_sigmoid = False
    routing_bias = ""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        check_values(
            raw, norm_topk_prob=(False, None), topk_method=("greedy", "group_limited_greedy"), scoring_func="softmax"
        )
        groups = {} if raw.get("topk_method") == "group_limited_greedy" else {"n_group": 1, "topk_group": 1}
        return super().normalize_config({**raw, **groups, "norm_topk_prob": False, "rope_interleave": True})

    def _load_routing(self, block: str, config: ExpertsConfig) -> ops.RouteArgs:
        return super()._load_routing(block, config)._replace(num_group_scores=1)


class DeepseekV3ForCausalLM(LatentDecoder):
    """DeepSeek V3, R1 (DeepSeek-AI 2024), Kimi K2 and Moonlight (Moonshot AI 2025): latent, routed by sigmoid."""


class Dots1ForCausalLM(DeepseekSparseDecoder):
    """dots.llm1 (rednote-hilab 2025): a Qwen3 with DeepSeek-V3's mixtures.

    DeepseekSparseDecoder that normalises queries and keys; layers from max_window_layers on may have a window.
    """

    qk_norm = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = dict(raw)
        if fields["sliding_window"] and not fields.get("layer_types"):
            first = int(fields["max_window_layers"])
            layers = range(fields["num_hidden_layers"])
            fields["layer_types"] = ["sliding_attention" if i >= first else "full_attention" for i in layers]
        return super().normalize_config(fields)
