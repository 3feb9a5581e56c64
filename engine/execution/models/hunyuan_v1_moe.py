"""Hunyuan-A13B (Tencent 2025): a Hunyuan with a mixture and a shared MLP in every layer."""

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ...errors import ConfigError
from .hunyuan_v1_dense import HunYuanDenseV1ForCausalLM
from .moe import SparseDecoder


class HunYuanMoEV1ForCausalLM(HunYuanDenseV1ForCausalLM, SparseDecoder):
    """SparseDecoder with Hunyuan's attention."""

    router_name = "gate.wg"

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config(
            {
                **raw,
                "num_experts": _one(raw, "num_experts"),
                "num_experts_per_tok": _one(raw, "moe_topk"),
                "moe_intermediate_size": _one(raw, "moe_intermediate_size") or raw["intermediate_size"],
                "norm_topk_prob": True,
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
