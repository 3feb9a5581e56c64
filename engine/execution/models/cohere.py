"""Cohere's Command R, R7B and A."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ...formats.json_file import positive_number
from .interleaved_rope import InterleavedRope
from .layer_norm_decoder import ParallelDecoder
from .layers import Attention, EachHeadNorm, LayerNorm, Norm


class CohereForCausalLM(InterleavedRope, ParallelDecoder):
    """Command R (Cohere 2024): attention and MLP side by side after one LayerNorm without bias; neighbours rotate.

    Parallel decoder whose logits are multiplied by `logit_scale`; the large one has a norm for each head.
    """

    mlp_names = None

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
        return {**fields, "logit_scale": positive_number(fields, "logit_scale", 0.0625)}

    def logits(self, hidden: Tensor) -> Tensor:
        return super().logits(hidden).float().mul_(self.config.hf_config["logit_scale"])

    def _norm_names(self) -> tuple[str, str]:
        return "input_layernorm", "input_layernorm"

    def _load_norm(self, name: str) -> Norm:
        return LayerNorm(self._norm_weight(name, self.config.hidden_size), None, self.config.norm_eps)

    def _load_attention(self, index: int) -> Attention:
        attention, name = super()._load_attention(index), f"{self._layer_name(index)}.self_attn"
        if not self.config.hf_config.get("use_qk_norm"):
            return attention
        own, own_kv = (self._parallel.share(self.config.num_heads), self._parallel.kv_heads(self.config.num_kv_heads))
        q_norm = self._load_heads_norm(f"{name}.q_norm", self.config.num_heads, own)
        k_norm = self._load_heads_norm(f"{name}.k_norm", self.config.num_kv_heads, own_kv)
        return replace(attention, qk_norms=(q_norm, k_norm))

    def _load_heads_norm(self, name: str, num_heads: int, own: slice) -> EachHeadNorm:
        weight = self._take(f"{name}.weight", num_heads, self.config.head_dim).float()[own, self._halves]
        return EachHeadNorm(weight, torch.ones_like(weight[0]), self.config.norm_eps)


class Cohere2ForCausalLM(CohereForCausalLM):
    """Command R7B and Command A (Cohere 2025): a Command R with windows in three layers of four, the only ones rotated.

    Command R in which layers with full attention have no positions.
    """

    def _load_attention(self, index: int) -> Attention:
        attention = super()._load_attention(index)
        if self.config.sliding_windows[index]:
            return attention
        return replace(attention, rope=attention.rope._replace(cos_sin=attention.rope.cos_sin[:, :0].contiguous()))
