"""Hunyuan, dense and with mixtures of experts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...errors import ConfigError
from ...formats.json_file import positive_number
from .decoder import Decoder
from .layers import Attention
from .moe import SparseDecoder


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotation of q and k before their norms."""

    cos_sin: Tensor  # [positions, D] float32

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = self.cos_sin.index_select(0, positions)[:, None].chunk(2, dim=-1)
        return _rotated(q, cos, sin), _rotated(k, cos, sin)


class HunYuanDenseV1ForCausalLM(Decoder):
    """Hunyuan, dense (Tencent 2025): queries and keys are normalised after the rotation.

    Llama with norms named query_layernorm and key_layernorm.
    """

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
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


class HunYuanMoEV1ForCausalLM(HunYuanDenseV1ForCausalLM, SparseDecoder):
    """Hunyuan-A13B (Tencent 2025): a Hunyuan with a mixture and a shared MLP in every layer.

    SparseDecoder with Hunyuan's attention.
    """

    router_name = "gate.wg"

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config(
            {
                **raw,
                "num_experts": _one(raw, "num_experts"),
                "num_experts_per_tok": _one(raw, "moe_topk"),
                "moe_intermediate_size": _one(raw, "moe_intermediate_size") or raw["intermediate_size"],
            }
        )

    def _load_shared_expert(self, index: int) -> Callable[[Tensor], Tensor]:
        return self._load_gated_mlp(f"{self._layer_name(index)}.mlp.shared_mlp", self.config.intermediate_size)


def _one(fields: Mapping[str, Any], name: str) -> Any:
    """Return the value of a field that may be a list with one value per layer. Raises ConfigError if layers differ."""
    value = fields.get(name)
    if isinstance(value, list):
        if len(set(value)) != 1:
            raise ConfigError(f"{name} differs between layers, which is not built: {value[:4]}")
        return value[0]
    return value
