"""Hunyuan, dense (Tencent 2025): a Llama whose queries and keys are normalised after the rotation instead of before."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...formats.positive_numbers import positive_number
from .decoder import Decoder
from .layers import Attention


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotation of q and k before their norms."""

    cos_sin: Tensor  # [positions, D] float32

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.cos_sin.index_select(0, positions)[:, None].chunk(2, dim=-1)
        return _rotated(q, cos, sin), _rotated(k, cos, sin)


class HunYuanDenseV1ForCausalLM(Decoder):
    """Llama with norms named query_layernorm and key_layernorm."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config({"rms_norm_eps": 1e-5, **raw})
        rope = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
        if rope.get("alpha") and (rope.get("rope_type") or rope.get("type")) == "dynamic":
            fields |= {"rope_scaling": None, "rope_parameters": {"rope_theta": _stretched_theta(fields, rope)}}
        return fields

    def _load_attention(self, index: int) -> Attention:
        attention, name = super()._load_attention(index), f"{self._layer_name(index)}.self_attn"
        rope = attention.rope._replace(
            cos_sin=attention.rope.cos_sin[:, :0].contiguous(),
            q_norm=self._norm_weight(f"{name}.query_layernorm", self.config.head_dim),
            k_norm=self._norm_weight(f"{name}.key_layernorm", self.config.head_dim),
        )
        return replace(attention, rope=rope, by_position=Rotation(attention.rope.cos_sin))


def _stretched_theta(fields: Mapping[str, Any], rope: Mapping[str, Any]) -> float:
    """Return the base that a fixed `alpha` stretches: theta · alpha^(D / (D - 2))."""
    head_dim = fields.get("head_dim") or fields["hidden_size"] // fields["num_attention_heads"]
    theta = positive_number(rope, "rope_theta", positive_number(fields, "rope_theta", 10000.0))
    return float(theta * positive_number(rope, "alpha") ** (head_dim / (head_dim - 2)))


def _rotated(heads: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    left, right = heads.float().chunk(2, dim=-1)
    return torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1).to(heads.dtype)
