"""Gemma 1 to 3."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ....kernels import ops
from ...errors import ConfigError
from ...formats.json_file import positive_number
from .decoder import Decoder, Layer
from .forward_inputs import Inputs
from .layers import Attention, Normed


class GemmaForCausalLM(Decoder):
    """Gemma (Gemma Team 2024): norm weights are stored less 1, embeddings are scaled by sqrt(hidden size), GEGLU.

    Llama whose heads may be wider than hidden_size / num_heads; no windows yet.
    """

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
        if fields.get("use_bidirectional_attention"):
            raise ConfigError("use_bidirectional_attention: tokens are generated one after the other here")
        if fields["hidden_act"] == "gelu":  # the first checkpoints say gelu, but were trained with the approximation
            fields["hidden_act"] = "gelu_pytorch_tanh"
        return fields

    def _load(self) -> None:
        super()._load()
        # The factor is rounded to the model's dtype, as in training: 33.94 is 34 in bfloat16.
        factor = torch.tensor(self.config.hidden_size**0.5, dtype=self._dtype)
        self._embed_factor = float(factor)

    def _embed(self, inputs: Inputs) -> Tensor:
        return super()._embed(inputs).mul_(self._embed_factor)

    def _norm_weight(self, name: str, size: int) -> Tensor:
        # float32, because in bfloat16 most of 1 + w would round to 1.
        return 1.0 + super()._norm_weight(name, size).float()


class Gemma2ForCausalLM(GemmaForCausalLM):
    """Gemma 2 (Gemma Team 2024): norms before and after each part, soft-caps, a window in every other layer.

    Gemma with its own scale of attention scores.
    """

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
        for name in ("attn_logit_softcapping", "final_logit_softcapping"):
            fields[name] = 0.0 if fields[name] is None else positive_number(fields, name)
        fields["query_pre_attn_scalar"] = positive_number(fields, "query_pre_attn_scalar")
        fields["hidden_act"] = fields["hidden_activation"]
        return fields

    def logits(self, hidden: Tensor) -> Tensor:
        logits, cap = super().logits(hidden).float(), self.config.hf_config["final_logit_softcapping"]
        return ops.softcap(logits, cap) if cap else logits

    def _load_attention(self, index: int) -> Attention:
        fields = self.config.hf_config
        scale, softcap = fields["query_pre_attn_scalar"] ** -0.5, fields["attn_logit_softcapping"]
        attention = super()._load_attention(index)
        return replace(attention, args=attention.args._replace(scale=scale, softcap=softcap))

    def _load_layer(self, index: int) -> Layer:
        layer = self._layer_name(index)
        return Layer(
            attention_norm=self._load_norm(f"{layer}.input_layernorm"),
            attention=Normed(self._load_attention(index), self._load_norm(f"{layer}.post_attention_layernorm")),
            mlp_norm=self._load_norm(f"{layer}.pre_feedforward_layernorm"),
            mlp=Normed(self._load_mlp(index), self._load_norm(f"{layer}.post_feedforward_layernorm")),
        )


class Gemma3ForCausalLM(Gemma2ForCausalLM):
    """Gemma 3 text models (Gemma Team 2025): q and k are normalised; another rope in layers with a window.

    Gemma 2 in which one layer in six has full attention, its own rope theta and, alone, the rope scaling.
    """

    qk_norm = True

    @classmethod
    def normalize_config(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        fields = super().normalize_config(raw)
        if fields["attn_logit_softcapping"]:
            raise ConfigError("attn_logit_softcapping: transformers ignores it in Gemma 3; set it to null if you may")
        return {**fields, "rope_parameters": dual_ropes(fields), "rope_scaling": None}


def dual_ropes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the rope of each kind of layer, in the old or the new spelling of their fields."""
    ropes = fields.get("rope_parameters") or {}
    return {
        "full_attention": {
            "rope_theta": fields.get("rope_theta") or 1e6,
            **(ropes.get("full_attention") or {}),
            **(fields.get("rope_scaling") or {}),
        },
        "sliding_attention": {
            "rope_theta": fields.get("rope_local_base_freq") or 1e4,
            **(ropes.get("sliding_attention") or {}),
        },
    }
