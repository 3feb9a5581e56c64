"""GLM-4.7-Flash (Zhipu AI 2026): DeepSeek-V3's attention and mixtures in a smaller model."""

from collections.abc import Mapping
from typing import Any

from .checkpoint import positive_int
from .hybrid import check_values
from .latent_decoder import LatentDecoder

_DEFAULTS = {"first_k_dense_replace": 1, "rms_norm_eps": 1e-5, "routed_scaling_factor": 1.8, "num_experts_per_tok": 4}


class Glm4MoeLiteForCausalLM(LatentDecoder):
    """LatentDecoder."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**_DEFAULTS, **raw}
        if kinds := fields.get("mlp_layer_types"):
            first = next((layer for layer, kind in enumerate(kinds) if kind == "sparse"), len(kinds))
            fields["first_k_dense_replace"] = first
            num_sparse = positive_int(fields, "num_hidden_layers") - first
            check_values(fields, mlp_layer_types=(["dense"] * first + ["sparse"] * num_sparse,))
        return super().normalize_config(fields)
