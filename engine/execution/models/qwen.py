"""Qwen2 to Qwen3, dense and with mixtures of experts."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from torch import Tensor

from ...formats.json_file import positive_int
from .decoder import Decoder
from .moe import SparseDecoder


class Qwen2ForCausalLM(Decoder):
    """Qwen2 and Qwen2.5 (Yang et al. 2024): biases on q, k and v only.

    Llama with biases on q, k and v, not on the output; a window, if switched on, applies to the last layers only.
    """

    qkv_bias: ClassVar[bool | None] = True
    o_bias: ClassVar[bool | None] = False

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
        if not fields.get("use_sliding_window"):
            return {**fields, "sliding_window": None, "layer_types": None}
        if fields["sliding_window"] and not fields.get("layer_types"):
            first = int(fields["max_window_layers"])
            kinds = ["full_attention" if i < first else "sliding_attention" for i in range(fields["num_hidden_layers"])]
            fields["layer_types"] = kinds
        return fields


class Qwen3ForCausalLM(Qwen2ForCausalLM):
    """Qwen3 (Yang et al. 2025): RMSNorm on every query and key head instead of biases.

    Qwen2 without biases that normalises queries and keys per head; windows are Qwen2's.
    """

    qkv_bias = None
    o_bias = None
    qk_norm = True


class SharedExpertDecoder(SparseDecoder):
    """Qwen2-MoE (Qwen Team 2024): a Qwen2 with mixtures of experts and a shared expert that processes every token.

    SparseDecoder with an expert that processes every token, behind a gate of its own.
    """

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
        fields = dict(raw)
        if not fields.get("use_sliding_window"):
            fields |= {"sliding_window": None, "layer_types": None}
        elif not fields.get("layer_types"):
            first = int(fields["max_window_layers"])
            windows = [index < first and index % 2 == 0 for index in range(fields["num_hidden_layers"])]
            fields["layer_types"] = ["sliding_attention" if window else "full_attention" for window in windows]
        return super().normalize_config(fields)


class Qwen3MoeForCausalLM(SparseDecoder):
    """Qwen3-MoE (Yang et al. 2025): a Qwen3 with mixtures of experts in the layers that the config names.

    transformers rounds the experts' routing weights to the model's dtype; here they stay float32, like Mixtral's in
    transformers.

    SparseDecoder that normalises queries and keys per head; a window, if switched on, applies to all layers.
    """

    qk_norm = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config(raw if raw.get("use_sliding_window") else {**raw, "sliding_window": None})
