"""GLM-4-0414 (Zhipu AI 2025): a GLM-4 with norms before and after each part."""

from dataclasses import replace

from .decoder import Layer
from .glm import GlmForCausalLM
from .layers import Normed


class Glm4ForCausalLM(GlmForCausalLM):
    """GLM-4 whose parts have a second norm."""

    def _load_layer(self, index: int) -> Layer:
        layer, name = super()._load_layer(index), self._layer_name(index)
        return replace(
            layer,
            attention=Normed(layer.attention, self._load_norm(f"{name}.post_self_attn_layernorm")),
            mlp=Normed(layer.mlp, self._load_norm(f"{name}.post_mlp_layernorm")),
        )
