"""Falcon, GPT-NeoX and Pythia: parts beside each other."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ...errors import ConfigError
from .decoder import WeightNames
from .layer_norm_decoder import ParallelDecoder
from .tensor_parallel import take_rows


class FalconForCausalLM(ParallelDecoder):
    """Falcon (Almazrouei et al. 2023): attention and MLP side by side after one norm (7B) or a norm each (40B).

    Decoder whose checkpoint stores each KV head's rows after the rows of its query heads.
    """

    names = WeightNames(
        prefix="transformer.", embed="word_embeddings", norm="ln_f", layers="h", attention="self_attention",
        o_proj="dense",
    )  # fmt: skip
    mlp_names = ("mlp.dense_h_to_4h", "mlp.dense_4h_to_h")

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        if raw.get("alibi"):
            raise ConfigError("alibi: positions by ALiBi are not supported; Falcon's rotary models (7B, 11B, 40B) are")
        hidden_size = raw.get("n_embed") or raw["hidden_size"]
        num_kv_heads = raw["num_attention_heads"]
        if raw.get("new_decoder_architecture"):
            num_kv_heads = raw.get("num_kv_heads") or num_kv_heads
        elif raw.get("multi_query", True):
            num_kv_heads = 1
        return {
            **raw,
            "hidden_size": hidden_size,
            "num_key_value_heads": num_kv_heads,
            "intermediate_size": raw.get("ffn_hidden_size") or 4 * hidden_size,
            "use_parallel_residual": raw.get("new_decoder_architecture") or raw.get("parallel_attn", True),
        }

    def _norm_names(self) -> tuple[str, str]:
        fields = self.config.hf_config
        if names := fields.get("norm_names"):  # a GGUF's
            return str(names[0]), str(names[1])
        if fields.get("new_decoder_architecture") and fields.get("num_ln_in_parallel_attn") in (None, 2):
            return "ln_attn", "ln_mlp"
        return ("input_layernorm", "input_layernorm") if self._is_parallel else super()._norm_names()

    def _load_qkv(self, name: str) -> Any:
        config = self.config
        groups, width, head_dim = config.num_kv_heads, config.num_heads // config.num_kv_heads + 2, config.head_dim
        rows = groups * width * head_dim
        tensors = [self._take(f"{name}.query_key_value.weight", rows, config.hidden_size)]
        if config.attention_bias:
            tensors.append(self._take(f"{name}.query_key_value.bias", rows))
        if not config.hf_config.get("has_ordered_qkv"):
            tensors = [_ungroup(tensor, groups, width, head_dim) for tensor in tensors]
        return self._pack(*(torch.cat(take_rows(tensor, self._qkv_rows)) for tensor in tensors))


def _ungroup(tensor: Tensor, groups: int, width: int, head_dim: int) -> Tensor:
    """Reorder rows from [queries, key, value] per group to all queries, all keys, all values."""
    grouped = tensor.view(groups, width, head_dim, *tensor.shape[1:])
    parts = (grouped[:, : width - 2], grouped[:, width - 2], grouped[:, width - 1])
    return torch.cat([part.reshape(-1, *tensor.shape[1:]) for part in parts])


class GPTNeoXForCausalLM(FalconForCausalLM):
    """GPT-NeoX (Black et al. 2022) and Pythia (Biderman et al. 2023): a Falcon that rotates a quarter of each head.

    Falcon whose checkpoint stores the query, key and value rows of one head after the other.
    """

    partial_rotary = True
    names = WeightNames(
        prefix="gpt_neox.", embed="embed_in", norm="final_layer_norm", attention="attention", o_proj="dense"
    )
    ignored = (  # causal masks, and a tied head
        ".attention.bias", ".attention.masked_bias", "rotary_emb.inv_freq", "lm_head.weight", "embed_out.weight",
    )  # fmt: skip
    _norm_names = ParallelDecoder._norm_names

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        return dict(raw)

    def _head_name(self) -> str:
        return "embed_out" if self._source.has("embed_out.weight") else super()._head_name()
