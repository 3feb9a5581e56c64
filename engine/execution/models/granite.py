"""Granite 3 and 4, dense and with mixtures of experts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ....kernels import ops
from ...formats.json_file import positive_int, positive_number
from .decoder import Layer
from .forward_inputs import Inputs
from .hybrid import check_values, with_layer_kinds
from .layers import MLP, Attention, Scaled
from .llama import LlamaForCausalLM
from .mamba2_mixer import MambaDecoder
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


_KINDS = ("linear_attention", "full_attention")


class GraniteMoeHybridForCausalLM(MambaDecoder, GraniteMoeForCausalLM):
    """Granite 4 (IBM 2025): state spaces, attention without positions in a few layers, a shared expert, often experts.

    Granite mixture with state spaces; without experts, the shared one is a layer's MLP.
    """

    partial_rotary = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = with_layer_kinds(raw, _KINDS, lambda layer: _KINDS[0])
        if not fields["num_local_experts"]:
            plain = [*range(fields["num_hidden_layers"])]
            fields |= {"num_local_experts": 1, "num_experts_per_tok": 1, "mlp_only_layers": plain}
        check_values(fields, position_embedding_type=(None, "nope", "rope"), normalization_function="rmsnorm")
        if fields.get("position_embedding_type") != "rope":
            fields |= {"rope_parameters": None, "rope_scaling": None, "partial_rotary_factor": 0.0}
        return super().normalize_config(fields)

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        if index in self.config.hf_config["experts"].layers:
            return super()._load_mlp(index)
        return self._load_shared_expert(index)

    def _load_shared_expert(self, index: int) -> MLP:
        inner, hidden = positive_int(self.config.hf_config, "shared_intermediate_size"), self.config.hidden_size
        name = f"{self._layer_name(index)}.shared_mlp"
        parts = [(f"{name}.input_linear", 2 * inner)]
        if self._source.has(f"{name}.gate_proj.weight"):  # a GGUF file has halves
            parts = [(f"{name}.gate_proj", inner), (f"{name}.up_proj", inner)]
        down = self._linear([(f"{name}.output_linear", hidden)], inner, bias=False, is_robust=True)
        return MLP(self._linear(parts, hidden, bias=False, is_robust=True), ops.silu_mul, down)
