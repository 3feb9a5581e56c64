"""GLM-4.5 to 4.7 (Zhipu AI 2025): DeepSeek-V3's mixtures, grouped-query attention; half of each head rotates."""

from collections.abc import Mapping
from typing import Any, ClassVar

from .deepseek_moe import DeepseekSparseDecoder

_DEFAULTS = {
    "moe_intermediate_size": 1408,
    "n_routed_experts": 128,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "first_k_dense_replace": 1,
    "partial_rotary_factor": 0.5,
    "rms_norm_eps": 1e-5,
}


class Glm4MoeForCausalLM(DeepseekSparseDecoder):
    """DeepseekSparseDecoder; the large models have norms of queries and keys, and all have biases on q, k and v."""

    partial_rotary = True
    o_bias: ClassVar[bool | None] = False

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config({**_DEFAULTS, **raw})

    def _load(self) -> None:
        self.qk_norm = bool(self.config.hf_config.get("use_qk_norm"))  # type: ignore[misc]
        super()._load()
