"""GatedDeltaDecoder: gated attention in some layers, a gated delta rule in the others (Yang et al. 2024)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_int
from .forward_inputs import Inputs
from .hybrid import HybridDecoder, check_values, in_order, with_layer_kinds
from .layer_states import RecurrentState
from .layers import Attention


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedAttention(Attention):
    """Attention with a gate for each element of its output; qkv_proj stacks queries, gates, keys and values."""

    def __call__(self, x: Tensor, inputs: Inputs, cache: ops.CacheView) -> Tensor:
        heads = ops.linear(x, self.qkv_proj).view(len(x), -1, self.head_dim)
        sizes = [self.num_heads, self.num_heads, self.num_kv_heads, self.num_kv_heads]
        q, gate, k, v = heads.split_with_sizes(sizes, dim=1)
        q = ops.rope_and_cache(q, k, v, inputs.positions, inputs.slot_mapping, self.rope, cache)
        out = ops.paged_attention(q, cache, inputs.ragged, self.args)
        return ops.linear(ops.gate_mul(out.reshape(len(x), -1), gate.flatten(1), "sigmoid"), self.o_proj)


_KINDS = ("linear_attention", "full_attention")


@dataclass(frozen=True, kw_only=True)
class DeltaShape:
    """Heads of a delta rule: each key head serves several value heads, whose state is [head_k_dim, head_v_dim]."""

    num_k_heads: int
    num_v_heads: int
    head_k_dim: int
    head_v_dim: int
    tiles_heads: bool  # True: value head h reads key head h % num_k_heads, else neighbours read the same one

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> "DeltaShape":
        """Read the heads. Raises ConfigError."""
        shape = cls(
            num_k_heads=positive_int(fields, "linear_num_key_heads"),
            num_v_heads=positive_int(fields, "linear_num_value_heads"),
            head_k_dim=positive_int(fields, "linear_key_head_dim"),
            head_v_dim=positive_int(fields, "linear_value_head_dim"),
            tiles_heads=bool(fields.get("linear_tiles_heads", False)),
        )
        if shape.num_v_heads % shape.num_k_heads:
            raise ConfigError(
                f"linear_num_value_heads {shape.num_v_heads} is not a multiple of linear_num_key_heads "
                f"{shape.num_k_heads}"
            )
        return shape

    @property
    def value_size(self) -> int:
        """Width of all value heads."""
        return self.num_v_heads * self.head_v_dim

    @property
    def conv_channels(self) -> int:
        """Width of queries, keys and values together, which the convolution takes."""
        return 2 * self.num_k_heads * self.head_k_dim + self.value_size


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedDeltaNet:
    """Gated delta rule between two projections; its heads are normalised and gated."""

    shape: DeltaShape
    in_proj: Any  # queries, keys, values, output gates
    gates: Any  # beta and decay of each value head
    conv_weight: Tensor  # [width, conv_channels] float32
    a_log: Tensor  # [num_v_heads] float32
    dt_bias: Tensor  # [num_v_heads] float32
    norm_weight: Tensor  # [head_v_dim]
    eps: float
    out_proj: Any

    def __call__(self, x: Tensor, inputs: Inputs, view: ops.StateView) -> Tensor:
        shape = self.shape
        qkv, gate = ops.linear(x, self.in_proj).split_with_sizes([shape.conv_channels, shape.value_size], dim=1)
        assert inputs.states is not None
        out = ops.gated_delta(
            qkv, ops.linear(x, self.gates), self.conv_weight, self.a_log, self.dt_bias, view, inputs.ragged,
            inputs.states, num_k_heads=shape.num_k_heads, head_k_dim=shape.head_k_dim, num_v_heads=shape.num_v_heads,
            head_v_dim=shape.head_v_dim, tiles_heads=shape.tiles_heads,
        )  # fmt: skip
        out = ops.gated_rms_norm(
            out.flatten(1), gate, self.norm_weight, eps=self.eps, group_size=shape.head_v_dim, norm_before_gate=True
        )
        return ops.linear(out, self.out_proj)


class GatedDeltaDecoder(HybridDecoder):
    """HybridDecoder with norms of queries and keys, whose norm weights are stored less 1."""

    partial_rotary = True
    qk_norm = True
    attention_class: ClassVar[type[Attention]] = GatedAttention

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        every = positive_int(raw, "full_attention_interval", 4)
        fields = with_layer_kinds(raw, _KINDS, lambda layer: _KINDS[(layer + 1) % every == 0])
        check_values(
            fields, attention_bias=False, attn_output_gate=True, output_gate_type="silu", hidden_act=("silu", "swish")
        )
        return super().normalize_config({**fields, "sliding_window": None})

    @classmethod
    def recurrent_state(cls, fields: Mapping[str, Any]) -> RecurrentState:
        shape, width = DeltaShape.from_fields(fields), positive_int(fields, "linear_conv_kernel_dim")
        heads = (shape.num_v_heads, shape.head_k_dim, shape.head_v_dim)
        return RecurrentState(shape.conv_channels, width, heads, num_gates=2 * shape.num_v_heads)

    def _is_ignored(self, name: str) -> bool:
        """True of the layers that predict more than one token, too, and of the encoder of images."""
        return super()._is_ignored(name) or name.startswith(("mtp.", "model.visual."))

    def _norm_weight(self, name: str, size: int) -> Tensor:
        return 1.0 + super()._norm_weight(name, size).float()

    def _load_qkv(self, name: str) -> Any:
        config = self.config
        q_size, kv_size = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = [(f"{name}.q_proj", 2 * q_size), (f"{name}.k_proj", kv_size), (f"{name}.v_proj", kv_size)]
        return self._linear(parts, config.hidden_size, bias=False)

    def _load_recurrent(self, index: int) -> GatedDeltaNet:
        hidden, shape = self.config.hidden_size, DeltaShape.from_fields(self.config.hf_config)
        width, name = self.config.hf_config["linear_conv_kernel_dim"], f"{self._layer_name(index)}.linear_attn"
        return GatedDeltaNet(
            shape=shape,
            in_proj=self._linear(self._projections(name, shape), hidden, bias=False),
            gates=self._load_gates(name, shape),
            conv_weight=self._take_conv(name, shape.conv_channels, width),
            a_log=self._take(f"{name}.A_log", shape.num_v_heads).float(),
            dt_bias=self._take(f"{name}.dt_bias", shape.num_v_heads).float(),
            norm_weight=self._take(f"{name}.norm.weight", shape.head_v_dim),
            eps=self.config.norm_eps,
            out_proj=self._linear([(f"{name}.out_proj", hidden)], shape.value_size, bias=False),
        )

    def _projections(self, name: str, shape: DeltaShape) -> list[tuple[str, int]]:
        """Return the matrices (name, number of rows) of queries, keys, values and output gates."""
        return [(f"{name}.in_proj_qkv", shape.conv_channels), (f"{name}.in_proj_z", shape.value_size)]

    def _load_gates(self, name: str, shape: DeltaShape) -> Any:
        """Return the matrix of beta and decay, unrounded: errors of a decay add up over all tokens."""
        rows = [(f"{name}.{part}.weight", shape.num_v_heads) for part in ("in_proj_b", "in_proj_a")]
        return self._pack_gates([self._take_weight(part, size, self.config.hidden_size) for part, size in rows])

    def _pack_gates(self, weights: list[Tensor | ops.QuantizedWeight]) -> Any:
        return ops.pack_linear(torch.cat([self._plain(weight) for weight in weights]))

    def _take_weight(self, name: str, *shape: int) -> Tensor | ops.QuantizedWeight:
        weight, order = super()._take_weight(name, *shape), self._row_order(name)
        return weight if order is None else in_order(weight, order.to(self._device))

    def _row_order(self, name: str) -> Tensor | None:
        """Return the order in which this weight's rows are used; None for the file's."""
        if not name.endswith(".q_proj.weight"):
            return None
        # The file has each head's queries before its gates.
        heads = torch.arange(2 * self.config.num_heads * self.config.head_dim)
        return heads.view(self.config.num_heads, 2, -1).transpose(0, 1).flatten()
