"""LFM2 and LFM3, dense and with mixtures of experts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from dataclasses import fields as dataclass_fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....kernels import ops
from ...formats.json_file import positive_int, positive_number
from .decoder import Layer, WeightNames
from .forward_inputs import Inputs
from .hybrid import HybridDecoder, with_layer_kinds
from .layer_states import RecurrentState
from .layers import GATED_ACTIVATIONS, MLP, Attention, Normed, activation
from .moe import SparseDecoder


@dataclass(frozen=True, slots=True)
class ShortConv:
    """Part of a layer: C · conv(B · x), with [B | C | x] from one projection."""

    in_proj: Any
    out_proj: Any
    weight: Tensor  # [K, H] float32, oldest tap first
    bias: Tensor | None  # [H] float32

    def __call__(self, x: Tensor, inputs: Inputs, view: ops.StateView) -> Tensor:
        bcx = ops.linear(x, self.in_proj)
        assert inputs.states is not None
        mixed = ops.short_conv(bcx, self.weight, self.bias, view, inputs.ragged, inputs.states)
        return ops.linear(mixed, self.out_proj)


class Lfm2ForCausalLM(HybridDecoder):
    """LFM2 (Liquid AI 2025): gated short convolutions in most layers, attention with normed heads in the others.

    HybridDecoder whose recurrent parts are convolutions alone.
    """

    names = WeightNames(
        norm="embedding_norm",
        attention_norm="operator_norm",
        o_proj="out_proj",
        mlp_norm="ffn_norm",
        mlp="feed_forward",
    )
    head_norm: ClassVar[str] = "layernorm"  # ending of the names of the norms of queries and keys

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {"tie_word_embeddings": raw.get("tie_embedding", True), **raw}
        with_attention = fields.get("full_attn_idxs")
        kinds = ["conv", "full_attention"]
        fields = with_layer_kinds(fields, kinds, lambda layer: kinds[with_attention is None or layer in with_attention])
        fields["layer_kinds"] = ["linear_attention" if kind == "conv" else kind for kind in fields["layer_kinds"]]
        return fields | {"intermediate_size": _intermediate_size(fields)}

    @classmethod
    def recurrent_state(cls, fields: Mapping[str, Any]) -> RecurrentState:
        return RecurrentState(positive_int(fields, "hidden_size"), positive_int(fields, "conv_L_cache"))

    def _load_attention(self, index: int) -> Any:
        part, name = super()._load_attention(index), f"{self._layer_name(index)}.{self.names.attention}"
        if not isinstance(part, Attention):
            return part
        q_norm, k_norm = (self._norm_weight(f"{name}.{x}_{self.head_norm}", self.config.head_dim) for x in "qk")
        return replace(part, rope=part.rope._replace(q_norm=q_norm, k_norm=k_norm))

    def _load_recurrent(self, index: int) -> ShortConv:
        fields, hidden, name = self.config.hf_config, self.config.hidden_size, f"{self._layer_name(index)}.conv"
        bias = bool(fields.get("conv_bias", False))
        weight = self._take(f"{name}.conv.weight", hidden, 1, fields["conv_L_cache"])
        return ShortConv(
            self._linear([(f"{name}.in_proj", 3 * hidden)], hidden, bias=bias),
            self._linear([(f"{name}.out_proj", hidden)], hidden, bias=bias),
            weight.squeeze(1).T.float().contiguous(),
            self._take(f"{name}.conv.bias", hidden).float() if bias else None,
        )

    def _load_mlp(self, index: int) -> Callable[[Tensor], Tensor]:
        hidden, inner, name = self.config.hidden_size, self.config.intermediate_size, self._mlp_name(index)
        return MLP(
            self._linear([(f"{name}.w1", inner), (f"{name}.w3", inner)], hidden, bias=False, is_robust=True),
            activation("silu", GATED_ACTIVATIONS),
            self._linear([(f"{name}.w2", hidden)], inner, bias=False, is_robust=True),
        )

    def _mlp_name(self, index: int) -> str:
        return f"{self._layer_name(index)}.{self.names.mlp}"


def _intermediate_size(fields: Mapping[str, Any]) -> int:
    """Return the MLP's width: two thirds of the stated one, rounded up, unless the config says otherwise."""
    size = positive_int(fields, "block_ff_dim", fields.get("intermediate_size"))
    if not fields.get("block_auto_adjust_ff_dim", True):
        return size
    unit = positive_int(fields, "block_multiple_of", 256)
    size = int(2 * size / 3)
    if fields.get("block_ffn_dim_multiplier", 1.0) is None:
        return size
    size = int(positive_number(fields, "block_ffn_dim_multiplier", 1.0) * size)
    return -(-size // unit) * unit


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadGatedAttention(Attention):
    """Attention with a gate for each head's output."""

    gates: Any
    spread: Any  # ones that hand a head's gate to each of its elements: cheaper than a gate for each element

    def __call__(self, x: Tensor, inputs: Inputs, cache: ops.CacheView) -> Tensor:
        gates = ops.linear(ops.linear(x, self.gates), self.spread)
        return ops.linear(ops.gate_mul(self.attend(x, inputs, cache), gates, "sigmoid"), self.o_proj)


_LFM3_KINDS = ("conv", "full_attention", "sliding_attention")


class Lfm3ForCausalLM(Lfm2ForCausalLM):
    """LFM3 (Liquid AI 2026): an LFM2 with windows in some layers, gates of heads, and norms after each part too.

    LFM2 with a rope for each kind of attention.
    """

    names = Lfm2ForCausalLM.names._replace(o_proj="o_proj")
    head_norm = "norm"
    unrounded = ("self_attn.gate_proj.weight",)  # small, and they scale whole heads

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        kinds = with_layer_kinds(raw, _LFM3_KINDS, _lfm3_kind)["layer_kinds"]
        states = ["conv" if kind == "conv" else "full_attention" for kind in kinds]
        windows = ["full_attention" if kind == "conv" else kind for kind in kinds]
        return {**super().normalize_config({**raw, "layer_types": states}), "layer_types": windows}

    def _load_attention(self, index: int) -> Any:
        part, config = super()._load_attention(index), self.config
        if not isinstance(part, Attention) or not config.hf_config["use_attention_gate"]:
            return part
        name, heads = f"{self._layer_name(index)}.{self.names.attention}.gate_proj", config.num_heads
        gates = self._plain(self._take_weight(f"{name}.weight", heads, config.hidden_size))
        spread = torch.eye(heads, dtype=gates.dtype, device=gates.device).repeat_interleave(config.head_dim, 0)
        fields = {field.name: getattr(part, field.name) for field in dataclass_fields(part)}
        return HeadGatedAttention(**fields, gates=ops.pack_linear(gates), spread=ops.pack_linear(spread))

    def _load_layer(self, index: int) -> Layer:
        layer, name = super()._load_layer(index), self._layer_name(index)
        if not self.config.hf_config["use_sandwich_norm"]:
            return layer
        attention, mlp = (self._load_norm(f"{name}.post_{part}_norm") for part in ("operator", "ffn"))
        return replace(layer, attention=Normed(layer.attention, attention), mlp=Normed(layer.mlp, mlp))


def _lfm3_kind(layer: int) -> str:
    return {2: "full_attention", 0: "sliding_attention" if layer else "conv"}.get(layer % 4, "conv")


class Lfm2MoeForCausalLM(SparseDecoder, Lfm2ForCausalLM):
    """LFM2-MoE (Liquid AI 2025): an LFM2 with mixtures of experts after its first layers, routed by sigmoid.

    LFM2 with experts, which a bias may balance.
    """

    sparse_block = "feed_forward"
    expert_names = ("w1", "w3", "w2")
    routes_by_sigmoid = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config({**raw, "mlp_only_layers": [*range(raw["num_dense_layers"])]})

    def _load(self) -> None:
        self.routing_bias = "expert_bias" if self.config.hf_config["use_expert_bias"] else ""  # type: ignore[misc]
        super()._load()
