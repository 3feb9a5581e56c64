"""DeepSeek V2 and Coder V2 (DeepSeek-AI 2024): latent attention, softmax routing, perhaps in groups."""

from collections.abc import Mapping
from typing import Any

from ....kernels import ops
from .hybrid import check_values
from .latent_decoder import LatentDecoder
from .moe import ExpertsConfig


class DeepseekV2ForCausalLM(LatentDecoder):
    """LatentDecoder that scores by softmax; a group counts its best expert."""

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
