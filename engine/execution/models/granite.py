"""Granite 3, 4 and Swash, dense and with mixtures of experts."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_int, positive_number
from .decoder import Layer
from .forward_inputs import Inputs
from .gpt_oss import SinksDecoder
from .hybrid import check_values, with_layer_kinds
from .layers import MLP, Attention, Scaled
from .llama import LlamaForCausalLM
from .mamba2_mixer import MambaDecoder
from .moe import ExpertsConfig, SparseDecoder
from .rope import rope_table

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
        if self._source.has(f"{block}.experts.gate_up_proj"):
            yield from self._fused_experts(block, config)
            return
        yield from self._experts_of_one_tensor(f"{block}.input_linear.weight", f"{block}.output_linear.weight", config)

    def _load_shared_expert(self, index: int) -> MLP | None:
        if not self.config.hf_config.get("shared_intermediate_size"):
            return None
        inner, hidden = positive_int(self.config.hf_config, "shared_intermediate_size"), self.config.hidden_size
        name = f"{self._layer_name(index)}.shared_mlp"
        parts = [(f"{name}.input_linear", 2 * inner)]
        if self._source.has(f"{name}.gate_proj.weight"):  # a GGUF file has halves
            parts = [(f"{name}.gate_proj", inner), (f"{name}.up_proj", inner)]
        down = self._linear([(f"{name}.output_linear", hidden)], inner, bias=False, is_robust=True)
        return MLP(self._linear(parts, hidden, bias=False, is_robust=True), ops.silu_mul, down)


class GraniteSWAForCausalLM(SinksDecoder, GraniteForCausalLM):
    """Granite Swash (IBM 2026): a Granite with sinks, windows in three layers of four, and a rotation for each layer.

    Granite whose `layer_rope_theta` has a theta for each layer, 0 for a layer without positions.
    """

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        kinds = ("full_attention", "sliding_attention")
        layers = range(positive_int(raw, "num_hidden_layers"))
        fields = {**raw, "layer_types": raw.get("layer_types") or [kinds[layer % 4 > 0] for layer in layers]}
        thetas = fields.get("layer_rope_theta") or ()
        if thetas and len(thetas) != len(layers):
            raise ConfigError(f"layer_rope_theta must have {len(layers)} entries, one for each layer")
        for theta in filter(None, thetas):
            positive_number({"layer_rope_theta": theta}, "layer_rope_theta")
        return super().normalize_config(fields)

    def _load(self) -> None:
        own, thetas = self.config.ropes[0], self.config.hf_config.get("layer_rope_theta") or ()
        table = self._cos_sin[own]
        self._tables = {
            theta: rope_table(replace(own, theta=theta), num_positions=len(table), device=self._device)
            if theta
            else table[:, :0].contiguous()
            for theta in set(thetas)
        }
        super()._load()

    def _load_attention(self, index: int) -> Attention:
        attention, thetas = super()._load_attention(index), self.config.hf_config.get("layer_rope_theta")
        if not thetas:
            return attention
        return replace(attention, rope=attention.rope._replace(cos_sin=self._tables[thetas[index]]))


class GraniteMoeSWAForCausalLM(GraniteSWAForCausalLM, GraniteMoeForCausalLM):
    """Granite Swash mixtures (IBM 2026): a Granite Swash with experts, and often a shared one, in every layer.

    Granite mixture whose checkpoints have transformers' form in memory.
    """

    router_name = "router"


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
        shared = self._load_shared_expert(index)
        assert shared is not None
        return shared
