"""Families of Mistral AI: Mistral, Ministral, Mixtral."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .decoder import Decoder
from .layers import Attention
from .moe import SparseDecoder


class MistralForCausalLM(Decoder):
    """Mistral (Jiang et al. 2023): a Llama whose layers may see only a sliding window, which config.json states.

    Llama with a sliding window.
    """


class MinistralForCausalLM(MistralForCausalLM):
    """Ministral (Mistral AI 2024): a Mistral in which layer_types names the layers with a sliding window.

    Mistral with layer_types; without them every layer has the window.
    """


_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 1e6,
    "factor": 16.0,
    "original_max_position_embeddings": 16384,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "llama_4_scaling_beta": 0.1,
}


@dataclass(frozen=True, slots=True)
class QueryScale:
    """Factor of queries by position."""

    factors: Tensor  # [positions] float32

    def __call__(self, q: Tensor, k: Tensor, positions: Tensor) -> tuple[Tensor, Tensor]:
        return q * self.factors.index_select(0, positions).to(q.dtype)[:, None, None], k


class Ministral3ForCausalLM(Decoder):
    """Ministral 3 (Mistral AI 2025): a Llama with YaRN, in which queries beyond the trained length grow, as in Llama 4.

    Llama whose queries are multiplied by 1 + beta · log(1 + position // trained length).
    """

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
        has_rope = fields.get("rope_parameters") or fields.get("rope_scaling")
        return fields if has_rope else {**fields, "rope_parameters": _ROPE}

    def _load_attention(self, index: int) -> Attention:
        return replace(super()._load_attention(index), by_position=self._query_scale)

    def _load(self) -> None:
        self._query_scale = self._load_query_scale()
        super()._load()

    def _load_query_scale(self) -> QueryScale | None:
        """Return the factors of all positions; None if each is 1, so that the native plan serves the model."""
        fields = self.config.hf_config
        rope = fields.get("rope_scaling") or fields.get("rope_parameters") or {}
        beta, trained = rope.get("llama_4_scaling_beta"), rope.get("original_max_position_embeddings")
        num_positions = len(self._cos_sin[self.config.ropes[0]])
        if not beta or not trained or num_positions <= trained:
            return None
        positions = torch.arange(num_positions, dtype=torch.float32)
        factors = 1.0 + beta * torch.log1p(torch.floor(positions / trained))
        return QueryScale(factors.to(self._device))


class MixtralForCausalLM(SparseDecoder):
    """Mixtral (Jiang et al. 2024): a Mistral with a mixture of experts in every layer.

    SparseDecoder with other names of experts, whose weights always sum to 1.
    """

    sparse_block = "block_sparse_moe"
    expert_names = ("w1", "w3", "w2")
