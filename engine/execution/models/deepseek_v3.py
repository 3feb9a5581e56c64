"""DeepSeek V3, R1 (DeepSeek-AI 2024), Kimi K2 (Moonshot AI 2025) and Moonlight: latent attention, sigmoid routing."""

from collections.abc import Mapping
from typing import Any

from .latent_decoder import LatentDecoder


class DeepseekV3ForCausalLM(LatentDecoder):
    """LatentDecoder."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config({"first_k_dense_replace": 3, **raw})
