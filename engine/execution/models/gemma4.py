"""Gemma 4 (Gemma Team 2026): layers with wider heads, keys as values, shared caches or a mixture; its text part."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_int
from .decoder import Layer, WeightNames
from .forward_inputs import Inputs
from .hybrid import scaled
from .layer_states import PagedKV
from .layers import Norm, Normed, RMSNorm
from .moe import ExpertsConfig, SparseDecoder, SparseMLP
from .shared_kv_gemma import PerLayerInput, SharedKVGemma, text_fields
from .tensor_parallel import take_rows

_ROPES = {
    "sliding_attention": {"rope_theta": 1e4},
    "full_attention": {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25},
}


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts beside a layer's MLP; both parts' outputs are normalised. The router reads the residual stream itself."""

    router_norm: Norm
    sparse: SparseMLP
    norm: Norm  # of the experts' inputs
    mlp_out_norm: Norm
    out_norm: Norm

    def __call__(self, residual: Tensor, dense: Tensor) -> Tensor:
        """Return the sum of the MLP's output, `dense`, and the experts'."""
        weights, ids = self.sparse.route(self.router_norm(residual))
        (packed,) = self.sparse.experts
        return self.mlp_out_norm(dense) + self.out_norm(ops.experts(self.norm(residual), weights, ids, packed))


@dataclass(frozen=True, slots=True)
class Gemma4Layer(Layer):
    """Layer with perhaps a mixture, a per-layer input, and a factor of its result."""

    mlp_out_norm: Norm
    mixture: Mixture | None
    per_layer_input: PerLayerInput | None
    scalar: float


class Gemma4ForCausalLM(SharedKVGemma, SparseDecoder):
    """SharedKVGemma whose layers with full attention have heads of their own width."""

    expert_activations = ("gelu_pytorch_tanh",)
    unrounded = ("router.proj.weight",)

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = text_fields(raw)
        if fields.get("use_bidirectional_attention") == "vision":  # text alone is causal
            fields["use_bidirectional_attention"] = None
        num_layers, every = positive_int(fields, "num_hidden_layers"), int(fields["sliding_window_pattern"])
        kinds = list(fields.get("layer_types") or [_kind(layer, every) for layer in range(1, num_layers + 1)])
        fields["layer_types"] = [*kinds[:-1], "full_attention"]  # as transformers does
        fields = super().normalize_config(fields)
        paged = tuple(cls._paged(fields, layer) for layer in range(num_layers))
        ropes = {**_ROPES, **(fields.get("rope_parameters") or {})}
        widths = dict(zip(fields["layer_types"], (part.head_dim for part in paged), strict=True))
        ropes = {kind: {**(ropes[kind] or {}), "head_dim": width} for kind, width in widths.items()}
        return {**fields, "paged": paged, "rope_parameters": ropes}

    @classmethod
    def _paged(cls, fields: Mapping[str, Any], layer: int) -> PagedKV:
        """Return the layer's shape of keys and values, in the published spelling or transformers 5's."""
        num_kv_heads, head_dim = positive_int(fields, "num_key_value_heads"), positive_int(fields, "head_dim")
        if own := fields.get("per_layer_config"):
            own = {int(number): shape for number, shape in own.items()}.get(layer) or {}  # keys such as "04"
            paged = PagedKV(
                positive_int(own, "num_key_value_heads", num_kv_heads), positive_int(own, "head_dim", head_dim)
            )
        elif fields["layer_types"][layer] == "full_attention":
            if fields.get("attention_k_eq_v"):
                num_kv_heads = positive_int(fields, "num_global_key_value_heads", num_kv_heads)
            paged = PagedKV(num_kv_heads, positive_int(fields, "global_head_dim"))
        else:
            paged = PagedKV(num_kv_heads, head_dim)
        if positive_int(fields, "num_attention_heads") % paged.num_kv_heads:
            raise ConfigError(f"num_attention_heads is not a multiple of layer {layer}'s {paged.num_kv_heads} KV heads")
        return paged

    @classmethod
    def _experts_config(cls, fields: Mapping[str, Any]) -> ExpertsConfig | None:
        if not fields.get("enable_moe_block"):
            return None
        num_chosen = fields.get("top_k_experts") or fields.get("num_experts_per_tok")
        return ExpertsConfig.from_fields({**fields, "num_experts_per_tok": num_chosen, "norm_topk_prob": True})

    def _has_values(self, index: int) -> bool:
        fields = self.config.hf_config
        return not fields.get("attention_k_eq_v") or fields["layer_types"][index] == "sliding_attention"

    def _expert_args(self) -> ops.ExpertArgs:
        return ops.ExpertArgs(is_gelu=True)

    def _load_layer(self, index: int) -> Gemma4Layer:
        config, layer = self.config, self._layer_name(index)
        is_double = config.hf_config.get("use_double_wide_mlp") and index in self._readers
        experts = config.hf_config["experts"]
        return Gemma4Layer(
            attention_norm=self._load_norm(f"{layer}.input_layernorm"),
            attention=Normed(self._load_attention(index), self._load_norm(f"{layer}.post_attention_layernorm")),
            mlp_norm=self._load_norm(f"{layer}.pre_feedforward_layernorm"),
            mlp=self._load_gated_mlp(f"{layer}.mlp", config.intermediate_size * (2 if is_double else 1)),
            mlp_out_norm=self._load_norm(f"{layer}.post_feedforward_layernorm"),
            mixture=None if experts is None else self._load_mixture(layer, experts),
            per_layer_input=self._load_per_layer_input(index) if self._input_size else None,
            scalar=self._load_scalar(f"{layer}.layer_scalar"),
        )

    def _load_scalar(self, name: str) -> float:
        scalar = self._take(name, 1)
        return 1.0 if scalar.is_meta else float(scalar)

    def _load_mixture(self, layer: str, experts: ExpertsConfig) -> Mixture:
        config, hidden = self.config, self.config.hidden_size
        scale = self._take(f"{layer}.router.scale", hidden).float() * hidden**-0.5
        sparse = SparseMLP(
            router=self._small_linear(f"{layer}.router.proj", experts.num_experts),
            experts=self._pack_experts(lambda: self._weighed_experts(layer, experts), experts),
            routing=ops.RouteArgs(top_k=experts.num_experts_per_tok, renormalize=True),
            slots=self._slots,
        )
        return Mixture(
            router_norm=RMSNorm(scale, config.norm_eps),
            sparse=sparse,
            norm=self._load_norm(f"{layer}.pre_feedforward_layernorm_2"),
            mlp_out_norm=self._load_norm(f"{layer}.post_feedforward_layernorm_1"),
            out_norm=self._load_norm(f"{layer}.post_feedforward_layernorm_2"),
        )

    def _weighed_experts(self, layer: str, config: ExpertsConfig) -> Iterator[ops.ExpertWeights]:
        """Yield the experts; the router's factor of an expert becomes one of its last matrix."""
        factors = self._take(f"{layer}.router.per_expert_scale", config.num_experts).float()
        names = f"{layer}.experts.gate_up_proj", f"{layer}.experts.down_proj"
        if self._source.has(names[0]):
            experts = self._experts_of_one_tensor(*names, config)
        elif self._source.has(f"{layer}.experts.0.gate_up_proj.weight"):  # in GGUF files
            experts = self._experts_in_pairs(layer, config)
        else:
            experts = self._experts(layer, config)
        for weights, factor in zip(experts, torch.split(factors, 1), strict=True):
            yield weights._replace(down=scaled(weights.down, factor))

    def _experts_in_pairs(self, layer: str, config: ExpertsConfig) -> Iterator[ops.ExpertWeights]:
        hidden, inner = self.config.hidden_size, config.intermediate_size
        for expert in range(config.num_experts):
            name = f"{layer}.experts.{expert}"
            pair = self._take_weight(f"{name}.gate_up_proj.weight", 2 * inner, hidden)
            halves = take_rows(pair, [slice(inner), slice(inner, 2 * inner)])
            yield ops.ExpertWeights(halves, self._take_weight(f"{name}.down_proj.weight", hidden, inner))

    def _run_layers(self, x: Tensor, inputs: Inputs, kv_cache: Any) -> Tensor:
        x, per_layer = self._split_inputs(x, inputs)
        residual: Tensor | None = None
        for index, (layer, cache) in enumerate(zip(self._layers, kv_cache.layers, strict=True)):
            assert isinstance(layer, Gemma4Layer)
            x, stream = self._run_layer(layer, x, residual, inputs, cache)
            if layer.per_layer_input is not None:
                stream = x + stream
                x = layer.per_layer_input(stream, per_layer[index])
            x, residual = (x, stream) if layer.scalar == 1.0 else ((x + stream).mul_(layer.scalar), None)
        kept = inputs.logits_indices
        return self._norm.add(x.index_select(0, kept), None if residual is None else residual.index_select(0, kept))[0]

    def _run_layer(
        self, layer: Layer, x: Tensor, residual: Tensor | None, inputs: Inputs, cache: Any, kept: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        assert isinstance(layer, Gemma4Layer)
        x, stream = super()._run_layer(layer, x, residual, inputs, cache, kept)
        assert stream is not None
        if layer.mixture is not None:
            x = layer.mixture(stream, x)
        return layer.mlp_out_norm(x), stream


class Gemma4ForConditionalGeneration(Gemma4ForCausalLM):
    """Gemma 4 beside encoders of images and sound, which stay unread."""

    names = WeightNames(prefix="model.language_model.")


def _kind(number: int, every: int) -> str:
    return "sliding_attention" if number % every else "full_attention"
