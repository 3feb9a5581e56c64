"""GLM-4.7-Flash (Zhipu AI 2026): DeepSeek-V3's attention and mixtures in a smaller model."""

from collections.abc import Mapping
from typing import Any

from .latent_decoder import LatentDecoder

_DEFAULTS = {"first_k_dense_replace": 1, "rms_norm_eps": 1e-5, "routed_scaling_factor": 1.8, "num_experts_per_tok": 4}


class Glm4MoeLiteForCausalLM(LatentDecoder):
    """LatentDecoder."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config({**_DEFAULTS, **raw})
