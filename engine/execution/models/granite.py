"""Granite 3 (IBM 2024): a Llama with four multipliers: of embeddings, scores, outputs of layer parts, and logits."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ...formats.positive_numbers import positive_number
from .decoder import Layer
from .forward_inputs import Inputs
from .layers import Attention, Scaled
from .llama import LlamaForCausalLM

_MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")


class GraniteForCausalLM(LlamaForCausalLM):
    """Llama with multipliers: `logits_scaling` divides, `attention_multiplier` replaces 1 / sqrt(head_dim)."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
        return fields | {name: positive_number(fields, name, 1.0) for name in _MULTIPLIERS}

    def _embed(self, inputs: Inputs) -> Tensor:
        return super()._embed(inputs).mul_(self.config.hf_config["embedding_multiplier"])

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden).float().div_(self.config.hf_config["logits_scaling"])

    def _load_attention(self, index: int) -> Attention:
        attention = super()._load_attention(index)
        return replace(attention, args=attention.args._replace(scale=self.config.hf_config["attention_multiplier"]))

    def _load_layer(self, index: int) -> Layer:
        layer, factor = super()._load_layer(index), self.config.hf_config["residual_multiplier"]
        return replace(layer, attention=Scaled(layer.attention, factor), mlp=Scaled(layer.mlp, factor))
