"""GLM-4 to GLM-4.7, dense and with mixtures of experts."""

from dataclasses import replace
from typing import ClassVar

from .decoder import Layer
from .deepseek_moe import DeepseekSparseDecoder
from .interleaved_rope import InterleavedRope
from .latent_decoder import LatentDecoder
from .layers import Normed


class GlmForCausalLM(InterleavedRope):
    """GLM-4 and GLM-Edge (Zhipu AI 2024): half of a head rotates, by neighbours; one matrix for gate and up.

    Llama with biases on q, k and v.
    """

    has_one_gate_up = True
    partial_rotary = True
    o_bias: ClassVar[bool | None] = False


class Glm4ForCausalLM(GlmForCausalLM):
    """GLM-4-0414 (Zhipu AI 2025): a GLM-4 with norms before and after each part.

    GLM-4 whose parts have a second norm.
    """

    def _load_layer(self, index: int) -> Layer:
        layer, name = super()._load_layer(index), self._layer_name(index)
        return replace(
            layer,
            attention=Normed(layer.attention, self._load_norm(f"{name}.post_self_attn_layernorm")),
            mlp=Normed(layer.mlp, self._load_norm(f"{name}.post_mlp_layernorm")),
        )


class Glm4MoeForCausalLM(DeepseekSparseDecoder):
    """GLM-4.5 to 4.7 (Zhipu AI 2025): DeepSeek-V3's mixtures, grouped-query attention; half of each head rotates.

    DeepseekSparseDecoder; the large models have norms of queries and keys, and all have biases on q, k and v.
    """

    partial_rotary = True
    o_bias: ClassVar[bool | None] = False

    def _load(self) -> None:
        self.qk_norm = bool(self.config.hf_config.get("use_qk_norm"))  # type: ignore[misc]
        super()._load()


class Glm4MoeLiteForCausalLM(LatentDecoder):
    """GLM-4.7-Flash (Zhipu AI 2026): DeepSeek-V3's attention and mixtures in a smaller model."""
