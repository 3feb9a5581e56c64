"""Granite 3, dense and with mixtures of experts."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ....kernels import ops
from ...formats.json_file import positive_number
from .decoder import Layer
from .forward_inputs import Inputs
from .layers import Attention, Scaled
from .llama import LlamaForCausalLM
from .moe import ExpertsConfig, SparseDecoder

_MULTIPLIERS = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")


class GraniteForCausalLM(LlamaForCausalLM):
    """Granite 3 (IBM 2024): a Llama with four multipliers: of embeddings, scores, outputs of layer parts, and logits.

    Llama with multipliers: `logits_scaling` divides, `attention_multiplier` replaces 1 / sqrt(head_dim).
    """

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


class GraniteMoeForCausalLM(GraniteForCausalLM, SparseDecoder):
    """Granite 3 mixtures (IBM 2024): a Granite with experts in every layer, whose weights are a softmax of the chosen.

    Granite whose checkpoints have one tensor for all experts of a layer.
    """

    sparse_block = "block_sparse_moe"
    router_name = "router.layer"

    def _experts(self, block: str, config: ExpertsConfig) -> Iterator[ops.ExpertWeights]:
        if self._source.has(f"{block}.experts.0.gate_proj.weight"):  # a GGUF file has halves
            yield from super()._experts(block, config)
            return
        yield from self._experts_of_one_tensor(f"{block}.input_linear.weight", f"{block}.output_linear.weight", config)
