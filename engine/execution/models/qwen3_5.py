"""Qwen3-Next and Qwen3.5: gated delta rules, gated attention in one layer of four."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .decoder import WeightNames
from .gated_delta import DeltaShape, GatedDeltaDecoder
from .qwen import SharedExpertDecoder


class Qwen3NextForCausalLM(GatedDeltaDecoder, SharedExpertDecoder):
    """Qwen3-Next (Qwen Team 2025): gated delta rules, gated attention in one layer of four, mixtures of experts.

    GatedDeltaDecoder whose projections are stored key head by key head.
    """

    def _projections(self, name: str, shape: DeltaShape) -> list[tuple[str, int]]:
        if self._source.has(f"{name}.in_proj_qkv.weight"):  # a GGUF file has them apart
            return super()._projections(name, shape)
        return [(f"{name}.in_proj_qkvz", shape.conv_channels + shape.value_size)]

    def _load_gates(self, name: str, shape: DeltaShape) -> Any:
        rows = (2 * shape.num_v_heads, self.config.hidden_size)
        return self._pack_gates([self._take_weight(f"{name}.in_proj_ba.weight", *rows)])

    def _row_order(self, name: str) -> Tensor | None:
        shape = DeltaShape.from_fields(self.config.hf_config)
        num_values = shape.num_v_heads // shape.num_k_heads
        if name.endswith(".in_proj_ba.weight"):
            return _parts_first([num_values, num_values], shape.num_k_heads)
        if name.endswith(".in_proj_qkvz.weight"):
            keys, values = shape.head_k_dim, num_values * shape.head_v_dim
            return _parts_first([keys, keys, values, values], shape.num_k_heads)
        return super()._row_order(name)


def _parts_first(sizes: list[int], num_heads: int) -> Tensor:
    """Return the order that collects each part of all heads, of rows that are stored head by head."""
    rows = torch.arange(num_heads * sum(sizes)).view(num_heads, -1)
    return torch.cat([part.flatten() for part in rows.split_with_sizes(sizes, dim=1)])


class Qwen3_5ForCausalLM(GatedDeltaDecoder):
    """Qwen3.5 (Qwen Team 2026): gated delta rules, gated attention in one layer of four; text."""


class Qwen3_5ForConditionalGeneration(Qwen3_5ForCausalLM):
    """Qwen3.5 beside an encoder of images, which stays unread."""

    names = WeightNames(prefix="model.language_model.")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config(text_fields(raw))


def text_fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a model's text part, joined with the fields of the whole model."""
    return {**raw, **raw["text_config"], "architectures": raw["architectures"]}


class Qwen3_5MoeForCausalLM(GatedDeltaDecoder, SharedExpertDecoder):
    """Qwen3.5-MoE (Qwen Team 2026): a Qwen3.5 with a mixture and a shared expert in every layer."""

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = raw
        return super().normalize_config({"intermediate_size": fields["moe_intermediate_size"], **fields})


class Qwen3_5MoeForConditionalGeneration(Qwen3_5MoeForCausalLM):
    """Qwen3.5-MoE beside an encoder of images, which stays unread."""

    names = WeightNames(prefix="model.language_model.")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return super().normalize_config(text_fields(raw))
