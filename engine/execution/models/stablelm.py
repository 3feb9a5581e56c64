"""StableLM (Bellagente et al. 2024): a Llama with LayerNorm and partial rotation; the 12B is a ParallelDecoder."""

from dataclasses import replace
from typing import ClassVar

import torch

from .layer_norm_decoder import ParallelDecoder
from .layers import Attention, EachHeadNorm


class StableLmForCausalLM(ParallelDecoder):
    """Decoder with optional biases on q, k and v and an optional norm of each query and key head."""

    partial_rotary = True
    o_bias: ClassVar[bool | None] = False
    mlp_names = None

    def _norm_names(self) -> tuple[str, str]:
        return ("input_layernorm", "input_layernorm") if self._is_parallel else super()._norm_names()

    def _load_attention(self, index: int) -> Attention:
        config, attention = self.config, super()._load_attention(index)
        if not config.hf_config.get("qk_layernorm"):
            return attention
        name = f"{self._layer_name(index)}.self_attn"
        q_norm = self._load_heads_norm(f"{name}.q_layernorm", config.num_heads)
        return replace(attention, qk_norms=(q_norm, self._load_heads_norm(f"{name}.k_layernorm", config.num_kv_heads)))

    def _load_heads_norm(self, name: str, num_heads: int) -> EachHeadNorm:
        config = self.config
        weights = [self._norm_weight(f"{name}.norms.{head}", config.head_dim) for head in range(num_heads)]
        parallel = self._parallel
        heads = parallel.share(num_heads) if num_heads == config.num_heads else parallel.kv_heads(num_heads)
        weight = torch.stack(weights).float()[heads]
        return EachHeadNorm(weight, torch.ones_like(weight[0]), config.norm_eps)
