"""Qwen2-MoE (Qwen Team 2024): a Qwen2 with mixtures of experts and a shared expert that processes every token."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from ...formats.positive_numbers import positive_int
from .moe import SparseDecoder

_DEFAULTS = {
    "num_experts": 60,
    "num_experts_per_tok": 4,
    "moe_intermediate_size": 1408,
    "shared_expert_intermediate_size": 5632,
    "intermediate_size": 5632,
    "norm_topk_prob": False,
    "sliding_window": 4096,
    "max_window_layers": 28,
}


class SharedExpertDecoder(SparseDecoder):
    """SparseDecoder with an expert that processes every token, behind a gate of its own."""

    unrounded = (*SparseDecoder.unrounded, "shared_expert_gate.weight")

    def _load_shared_expert(self, index: int) -> Callable[[Tensor], Tensor]:
        size = positive_int(self.config.hf_config, "shared_expert_intermediate_size")
        return self._load_gated_mlp(f"{self._layer_name(index)}.mlp.shared_expert", size)

    def _load_shared_gate(self, index: int) -> Any:
        return self._small_linear(f"{self._layer_name(index)}.mlp.shared_expert_gate", 1)


class Qwen2MoeForCausalLM(SharedExpertDecoder):
    """SharedExpertDecoder; a window, if switched on, applies to every other one of the first layers."""

    o_bias: ClassVar[bool | None] = False

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = {**_DEFAULTS, **raw, "attention_bias": raw.get("qkv_bias", True)}
        if not fields.get("use_sliding_window"):
            fields |= {"sliding_window": None, "layer_types": None}
        elif not fields.get("layer_types"):
            first = int(fields["max_window_layers"])
            windows = [index < first and index % 2 == 0 for index in range(fields["num_hidden_layers"])]
            fields["layer_types"] = ["sliding_attention" if window else "full_attention" for window in windows]
        return super().normalize_config(fields)
