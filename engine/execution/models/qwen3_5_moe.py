"""Qwen3.5-MoE (Qwen Team 2026): a Qwen3.5 with a mixture and a shared expert in every layer."""

from collections.abc import Mapping
from typing import Any

from .decoder import Names
from .gated_delta import GatedDeltaDecoder
from .qwen2_moe import SharedExpertDecoder
from .qwen3_5 import text_fields

_DEFAULTS = {
    "num_experts": 256,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "norm_topk_prob": True,
}


class Qwen3_5MoeForCausalLM(GatedDeltaDecoder, SharedExpertDecoder):
    """GatedDeltaDecoder with experts."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**_DEFAULTS, **raw}
        return super().normalize_config({"intermediate_size": fields["moe_intermediate_size"], **fields})


class Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeForCausalLM):
    """Qwen3.5-MoE beside an encoder of images, which stays unread."""

    names = Names(prefix="model.language_model.")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config(text_fields(raw))
